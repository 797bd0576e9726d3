"""A cache in torch's DataLoader: worker processes open the same generation, however they are started."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter

from ..support.samples import sample, write_cache

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = f"""
import faulthandler, os, sys
faulthandler.dump_traceback_later(100, exit=True)
sys.path.insert(0, {str(ROOT)!r})
import tests.conftest
import torch
from torch.utils.data import DataLoader
from streamcache.dataset_cache import Subset, open_cache
from streamcache.lora_train import BatchStream
from tests.support.samples import sample, same, write_cache

def as_they_are(samples):
    return samples

def own_epoch(stream, epoch):
    stream.set_epoch(epoch)
    return stream

if __name__ == "__main__":
    kind, path = sys.argv[1:]
    cache = open_cache(path)
    cache[0].realize()  # files are open, and threads run
    def loader(dataset, **options):
        return DataLoader(dataset, num_workers=2, multiprocessing_context=kind, timeout=90, **options)
    checked = open_cache(path, check=True)
    for dataset in (cache, Subset(checked[2:10], [5, 0, 3])):
        seen = [one for group in loader(dataset, batch_size=2, collate_fn=as_they_are) for one in group]
        assert [s.source for s in seen] == [s.source for s in dataset], seen
        for mine, theirs in zip(dataset, seen):
            assert same(mine.realize().latent, theirs.latent) and same(mine.realize().conditioning, theirs.conditioning)
        write_cache(path, 3, first=50)  # a newer generation: the workers read that of the cache
    stream = BatchStream(cache, batch_size=2, seed=7)
    living = loader(stream, batch_size=None, persistent_workers=True)
    for epoch, start in ((0, 0), (3, 0), (3, 2)):
        stream.set_epoch(epoch, start)
        assert [batch.indices for batch in living] == [batch.indices for batch in stream], epoch
    last = [batch.indices for batch in living]
    assert last != [batch.indices for batch in own_epoch(stream, 0)]
    leases = sorted(os.listdir(path + "/.leases"))
    del living  # ends the workers
    assert cache[0].realize().source and set(os.listdir(path + "/.leases")) & set(leases), "the lease is gone"
    print("done", len(cache))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "spawn",
        pytest.param("fork", marks=pytest.mark.skipif(sys.platform != "linux", reason="fork")),
        pytest.param("forkserver", marks=pytest.mark.skipif(sys.platform == "win32", reason="forkserver")),
    ],
)
def test_f8_worker_processes_read_the_samples_of_a_cache(tmp_path, kind):
    path = write_cache(tmp_path / "set", 12)
    script = tmp_path / "load.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, kind, path], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.split() == ["done", "12"], done.stderr[-3000:]


@pytest.mark.slow
def test_f8_the_example_in_the_document_runs(tmp_path):
    write_images(tmp_path / "my_set", 10)
    text = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.conftest\n"
    (tmp_path / "example.py").write_text(start + script)
    done = subprocess.run([sys.executable, "example.py"], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    for epoch in "01":
        assert sum(int(count) for number, count, _, _ in rows if number == epoch) == 10


def write_images(path: Path, count: int) -> None:
    """A cache of two buckets of images, without odd values."""
    with CacheWriter(path) as writer:
        for i in range(count):
            given = {**sample(i), "latent": {"samples": torch.randn(1, 4, 8, 8 + 8 * (i % 2))}}
            writer.add(**given)
