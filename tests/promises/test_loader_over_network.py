"""Remote datasets in torch's DataLoader are read ahead: each worker fetches what it will read itself."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import Cache, CacheWriter, open_cache
from streamcache.lora_train import BatchStream

from ..support.range_server import Line, serving
from ..support.served import open_served, settle
from ..support.small_parts import make_dataset, words_of

ROOT = Path(__file__).resolve().parents[2]
COUNT = 24
SCRIPT = f"""
import faulthandler, sys
faulthandler.dump_traceback_later(200, exit=True)
sys.path.insert(0, {str(ROOT)!r})
import tests.conftest
from torch.utils.data import DataLoader
from streamcache.dataset_cache import open_cache
from streamcache.lora_train import BatchStream

if __name__ == "__main__":
    stream = BatchStream(open_cache(sys.argv[1]), 1, 7)
    loader = DataLoader(
        stream, batch_size=None, num_workers=2, multiprocessing_context="spawn", prefetch_factor=1, timeout=90
    )
    batches = iter(loader)
    print(next(batches).indices[0], flush=True)
    sys.stdin.readline()
    for batch in batches:
        print(batch.indices[0], flush=True)
"""


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STREAMCACHE_CACHE_DIR", str(tmp_path / "copies"))


def write(path: Path) -> Path:
    with CacheWriter(path) as writer:
        for i in range(COUNT):
            latent = torch.randn(1, 4, 128, 128, generator=torch.Generator().manual_seed(i))
            writer.add({"samples": latent}, words_of(i), f"caption {i}", f"{i}.png")
    return path


def numbers_of(dataset: Cache) -> list[int]:
    return [batch.indices[0] for batch in BatchStream(dataset, 1, 7)]


def shard_requests(line: Line) -> list[tuple[str, int, int]]:
    return [request for request in line.requests if request[0].startswith("shards/")]


def bytes_asked(line: Line) -> int:
    return sum(size for _, _, size in shard_requests(line))


def test_f8_the_batches_of_an_epoch_are_fetched_before_they_are_read(tmp_path: Path):
    path = write(tmp_path / "set")
    with serving(path) as (address, line), open_served(path, address) as dataset:
        batches = iter(BatchStream(dataset, 1, 7))
        next(batches)
        settle(dataset._files.ahead)
        asked = shard_requests(line)
        assert dataset.traffic.fetched >= COUNT - 1
        list(batches)
        assert shard_requests(line) == asked, "nothing is left to ask for"


def test_f8_a_loop_that_ends_early_fetches_no_more(tmp_path: Path):
    path = write(tmp_path / "set")
    with serving(path, Line(0.05)) as (address, _), open_served(path, address) as dataset:
        batches = iter(BatchStream(dataset, 1, 7))
        next(batches)
        batches.close()
        assert dataset._files.ahead._coming is None or not dataset._files.ahead._window.end


def test_f8_only_the_fields_that_are_read_are_fetched(tmp_path: Path):
    path = make_dataset(tmp_path / "set", count=12).path
    with serving(path) as (address, _), open_served(path, address) as dataset:
        asked: list[int] = []
        ahead = dataset._files.ahead
        come = ahead.come
        ahead.come = lambda batches: come(iter([asked.append(len(one)) or one for one in batches]))
        list(BatchStream(dataset, 1, 7, fields=["latent"]))
        assert asked == [1] * 12


@pytest.mark.slow
def test_f8_spawned_workers_fetch_ahead_what_they_read(tmp_path: Path):
    pytest.importorskip("obstore")
    path = write(tmp_path / "set")
    with open_cache(path) as local:
        expected = numbers_of(local)
    with serving(path) as (address, line):
        (tmp_path / "load.py").write_text(SCRIPT)
        command = [sys.executable, str(tmp_path / "load.py"), address]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            try:
                first = process.stdout.readline()
                whole = COUNT * 4 * 128 * 128 * 4  # bytes of all latents
                end = time.monotonic() + 60
                while bytes_asked(line) < whole and time.monotonic() < end:
                    time.sleep(0.05)
                assert bytes_asked(line) >= whole, "workers wait for the loop to ask"
                asked = shard_requests(line)
                assert bytes_asked(line) < 1.3 * whole, "each worker fetches its own batches only"
                rest, error = process.communicate("go on\n", timeout=120)
            finally:
                process.kill()
        assert [int(n) for n in (first + rest).split()] == expected, error[-3000:]
        assert shard_requests(line) == asked
