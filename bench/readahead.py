"""Training from a server: 50 ms to every answer, 100 MB/s, a step of 200 ms; with no, some and all local copies.

STREAMCACHE_PEERS names a Python that has litdata and mosaicml-streaming, to measure them on the same server.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..dataset_cache import open_cache, use_cache_limit
from ..lora_train import TrainConfig, open_run, train
from ..lora_train.data import Order, read_columns
from ..tests.support.range_server import TRAFFIC
from .examples import EXAMPLE_BYTES
from .reading import BATCH, write_cache
from .rounds import Settings
from .table import Figure
from .training import BusyModel

LATENCY, RATE = 0.050, 100e6
STEP = 0.200
EPOCHS = 2
PEERS = ("litdata", "mosaicml-streaming")
PEERS_PYTHON = "STREAMCACHE_PEERS"
LIMITS = {"no local copies": 0.0, "local copies of half": 0.5, "local copies of all": 1.2}
LARGEST_WAIT = 1.0  # % of the time


class WaitingModel(BusyModel):
    """A model on an accelerator: the processor only waits for it."""

    def predict(self, x_t: Any, t: Any, conditioning: Any) -> Any:
        time.sleep(self.seconds)
        busy, self.seconds = self.seconds, 0.0
        try:
            return super().predict(x_t, t, conditioning)
        finally:
            self.seconds = busy


@dataclass(frozen=True)
class Epochs:
    """Of each epoch: seconds, and seconds of waiting for data; then what came over the line."""

    seconds: list[float]
    waited: list[float]
    requests: int
    nbytes: int

    def share(self, epoch: int) -> float:
        return 100 * self.waited[epoch] / self.seconds[epoch]


def measure_readahead(folder: Path, settings: Settings) -> list[Figure]:
    count = max(BATCH * 4, settings.streamed // BATCH * BATCH)
    write_cache(folder / "cache", count)
    group = (
        f"Training from a server ({count:,} samples of {EXAMPLE_BYTES // 1000} KB, 50 ms, 100 MB/s, 200 ms per step)"
    )
    figures = []
    for name, share in LIMITS.items():
        with throttled(folder / "cache") as address:
            found = _train(folder / name.replace(" ", "_"), address, share, count)
        figures += _figures(group, name, found, count, LARGEST_WAIT)
    if python := os.environ.get(PEERS_PYTHON):
        for peer in PEERS:
            _peer(python, peer, "write", folder / peer / "set", count)
            for name, share in LIMITS.items():
                if share:  # they have no other way
                    figures += _stream(group, python, folder, peer, name, count)
    return figures


def _figures(group: str, name: str, found: Epochs, count: int, target: float | None = None) -> list[Figure]:
    steps = f"of {count // BATCH * STEP:.1f} s of steps"
    cost = f"{EPOCHS} epochs, {found.requests:,} requests"
    waits = [
        Figure(group, f"waiting for data, {name}, epoch {n + 1}", found.share(n), "% of the time", target)
        for n in range(EPOCHS)
    ]
    return [
        *waits,
        Figure(group, f"an epoch, {name}", found.seconds[-1], "s", note=steps),
        Figure(group, f"bytes, {name}", found.nbytes / (count * EXAMPLE_BYTES), "× the dataset", note=cost),
    ]


def _stream(group: str, python: str, folder: Path, peer: str, name: str, count: int) -> list[Figure]:
    """The same work with another package: batches in its own shuffled order, in two workers of its loader."""
    limit, patience = int(LIMITS[name] * count * EXAMPLE_BYTES), 60 + 4 * EPOCHS * STEP * count / BATCH
    with throttled(folder / peer) as address:
        words = peer, "read", address, folder / f"{peer} {limit}", limit, EPOCHS, BATCH, STEP
        try:
            times = json.loads(_peer(python, *words, patience=patience).splitlines()[-1])
        except subprocess.TimeoutExpired:
            return [Figure(group, f"{peer}, {name}", patience, "s", note="not finished then; ended")]
        with urllib.request.urlopen(f"{address}/{TRAFFIC}") as found:
            requests, nbytes = json.load(found)
    return _figures(group, f"{peer}, {name}", Epochs(times["seconds"], times["waited"], requests, nbytes), count)


def _peer(python: str, *words: Any, patience: float = 600) -> str:
    """What the script prints. It is ended with its workers, which would go on otherwise."""
    command = [python, str(Path(__file__).with_name("streaming_peers.py")), *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        found, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return found


@contextmanager
def throttled(folder: Path) -> Iterator[str]:
    """A server in a process of its own, so that it does not compete with the training for Python."""
    command = [sys.executable, "-m", "streamcache.tests.support.range_server", str(folder)]
    command += ["--latency", str(LATENCY), "--rate", str(RATE)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.wait()


def _train(folder: Path, address: str, share: float, count: int) -> Epochs:
    os.environ["STREAMCACHE_CACHE_DIR"] = str(folder / "copies")
    use_cache_limit(int(share * count * EXAMPLE_BYTES))
    try:
        with open_cache(address) as dataset, open_run(folder / "runs", "bench") as run:
            length = len(Order(read_columns(dataset), 0, BATCH))
            config = TrainConfig(steps=EPOCHS * length, batch_size=BATCH, rank=2, targets="all", save_every=0)
            train(WaitingModel(STEP), dataset, config, run)
            rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
            ends = [{"time": 0.0, "waited": 0.0}, *(rows[length * n - 1] for n in range(1, EPOCHS + 1))]
            seconds, waited = ([b[name] - a[name] for a, b in pairwise(ends)] for name in ("time", "waited"))
            traffic = dataset.traffic
            assert traffic is not None
            return Epochs(seconds, waited, traffic.requests, traffic.bytes)
    finally:
        use_cache_limit(None)
        del os.environ["STREAMCACHE_CACHE_DIR"]
