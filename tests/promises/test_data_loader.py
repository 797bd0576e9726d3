"""A cache in torch's DataLoader: worker processes open the same generation, however they are started."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..support.samples import write_cache

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = f"""
import faulthandler, pickle, sys
faulthandler.dump_traceback_later(100, exit=True)
sys.path.insert(0, {str(ROOT)!r})
import tests.conftest
import torch
from torch.utils.data import DataLoader
from streamcache.dataset_cache import CacheWriter, open_cache
from tests.support.samples import sample, same, write_cache

class Batches(torch.utils.data.Dataset):
    def __init__(self, cache):
        self.cache, self.rows = cache, [rows[:2] for rows in cache.buckets().values()]
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        return self.cache.read_batch(self.rows[i])

def as_they_are(samples):
    return samples

if __name__ == "__main__":
    kind, path = sys.argv[1:]
    cache = open_cache(path)
    cache[0].realize()  # files are open, and threads run
    write_cache(path, 3, first=50)  # a newer generation: the workers read that of the cache
    def loader(dataset, **options):
        return DataLoader(dataset, num_workers=2, multiprocessing_context=kind, timeout=90, **options)
    for dataset in (cache, cache[2:10]):
        seen = [one for group in loader(dataset, batch_size=2, collate_fn=as_they_are) for one in group]
        assert [s.source for s in seen] == [s.source for s in dataset], seen
        for mine, theirs in zip(dataset, seen):
            assert same(mine.realize().latent, theirs.latent) and same(mine.realize().conditioning, theirs.conditioning)
    batches = list(loader(Batches(cache), batch_size=None))
    for rows, batch in zip(Batches(cache).rows, batches):
        own = cache.read_batch(rows)
        assert same(own.latents, batch.latents) and own.captions == batch.captions, rows
    print("done", len(cache))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["spawn", pytest.param("fork", marks=pytest.mark.skipif(sys.platform != "linux", reason="fork"))]
)
def test_worker_processes_read_the_samples_of_a_cache(tmp_path, kind):
    path = write_cache(tmp_path / "set", 12)
    script = tmp_path / "load.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, kind, path], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.split() == ["done", "12"], done.stderr[-3000:]
