"""Memory of this process, and jobs that run in a child process so that only their memory counts."""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from ..dataset_cache import CacheWriter, open_cache
from .examples import make_examples
from .reading import BATCH, add_example

PROC = Path("/proc/self")


def anonymous_bytes() -> int:
    """Memory that is not backed by a file. Mapped files do not count: the system can evict them."""
    return _kilobytes(PROC / "smaps_rollup", "Anonymous:") << 10


def peak_bytes() -> int:
    return _kilobytes(PROC / "status", "VmHWM:") << 10


def resident_bytes() -> int:
    return _kilobytes(PROC / "status", "VmRSS:") << 10


def forget_peak() -> None:
    (PROC / "clear_refs").write_text("5")


def measure_in_child(job: str, *arguments: object) -> dict[str, int]:
    """Run one of `JOBS` in a separate process. Zeros if the system does not report memory."""
    if not (PROC / "smaps_rollup").exists():
        return dict.fromkeys(("peak", "opened", "buffers", "lasting"), 0)
    command = [sys.executable, "-m", __spec__.name, job, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def watch_writing(count: str) -> dict[str, int]:
    """Peak memory, above that at the start, of writing `count` samples made one by one."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent / "results") as folder:
        _write(Path(folder) / "warm", 16)
        forget_peak()
        start = resident_bytes()
        _write(Path(folder) / "counted", int(count))
        return {"peak": peak_bytes() - start}


def watch_reading(small: str, large: str, visited: str) -> dict[str, int]:
    """Memory for opening the large cache, and memory that reading `visited` of its samples leaves behind."""
    order = random.Random(0)
    warm_up = open_cache(small)
    warm_up.read_batch(list(range(BATCH)))
    before = anonymous_bytes()
    cache = open_cache(large)
    slot = cache.buffers(BATCH)
    cache.read_batch(list(range(BATCH)), buffers=slot)
    opened = anonymous_bytes()
    for _ in range(int(visited) // BATCH):
        cache.read_batch([order.randrange(len(cache)) for _ in range(BATCH)], buffers=slot)
    return {"opened": opened - before, "lasting": anonymous_bytes() - opened}


JOBS = {"write": watch_writing, "read": watch_reading}


def _write(path: Path, count: int) -> None:
    with CacheWriter(path) as writer:
        for example in make_examples(count):
            add_example(writer, example)


def _kilobytes(path: Path, label: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(label))
    return int(line.split()[1])


if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
