"""`CacheWriter.once`: an entry that many threads ask for is made once."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter

THREADS, KEYS = 8, 300


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Threads change places as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_a24_many_threads_make_every_entry_once(tmp_path: Path, busy_switching: None):
    made: Counter[int] = Counter()
    start = threading.Barrier(THREADS)

    def make(number: int) -> dict[str, torch.Tensor]:
        made[number] += 1
        return {"samples": torch.full((1, 1, 2, 2), float(number))}

    def ask(writer: CacheWriter) -> None:
        start.wait()
        for number in range(KEYS):
            writer.once(f"key {number}", lambda number=number: make(number), "latent")

    with CacheWriter(tmp_path / "set") as writer:
        threads = [threading.Thread(target=ask, args=(writer,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert made == Counter(range(KEYS))


def test_after_a_failed_make_the_next_call_tries(tmp_path: Path):
    def fail() -> None:
        raise RuntimeError("no memory")

    with CacheWriter(tmp_path / "set") as writer:
        with pytest.raises(RuntimeError, match="no memory"):
            writer.once("key", fail, "latent")
        writer.once("key", lambda: {"samples": torch.zeros(1, 1, 2, 2)}, "latent")
        assert writer.has("key")
