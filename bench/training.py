"""Training: waiting for data, overhead of the loop, model calls, and memory by dataset size."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..dataset_cache import Batch, Cache, CacheWriter, SampleFacts, open_cache
from ..lora_train import (
    FlowSchedule,
    ObjectiveSettings,
    PreparedBatch,
    TrainConfig,
    TrainHooks,
    TrainResult,
    draw_noise,
    open_run,
    train,
)
from ..lora_train import step as step_module
from ..lora_train.adapters import seeded_generator
from ..lora_train.data import BatchPlan, Order, Prefetcher, read_columns
from .examples import make_example
from .memory import PROC, anonymous_bytes
from .reading import BATCH, write_cache
from .rounds import Settings
from .table import Figure

STEP = 0.020  # seconds of the model call for which the targets are set
SMALL, LARGE = 1_000, 100_000
ROUNDS = 5


class BusyModel:
    """A stand-in for a model: keeps the processor busy for `seconds`, then adds adapted layers to its input."""

    device = torch.device("cpu")
    schedule = FlowSchedule()

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent, self.calls = seconds, 0.0, []
        self.layers = nn.ModuleDict({f"layer{n}": nn.Linear(4, 4) for n in range(8)}).requires_grad_(False)
        self._block = torch.randn(128, 128)

    def prepare_for(self, dataset: Any) -> None: ...

    def prepare(self, batch: Batch) -> PreparedBatch:
        return PreparedBatch(batch.latents.float(), batch.conditionings[0][0][0])

    def predict(self, x_t: Tensor, t: Tensor, conditioning: Any) -> Tensor:
        self.calls.append(len(x_t))
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            self._block @ self._block
        mean = x_t.mean((2, 3))
        for layer in self.layers.values():
            mean = layer(mean)
        return x_t + mean[:, :, None, None]

    def adaptable(self) -> dict[str, nn.Module]:
        return dict(self.layers.items())

    def groups(self) -> dict[str, list[str]]:
        return {"all": list(self.layers)}

    def blocks(self) -> list[nn.Module]:
        return []

    def export_names(self, naming: str) -> dict[str, str]:
        return {name: f"diffusion_model.{name}" for name in self.layers}

    @contextmanager
    def session(self) -> Iterator[None]:
        yield

    def sample(self, conditioning: Any, shape: tuple[int, ...], seed: int, steps: int) -> Tensor:
        raise NotImplementedError


class SlowCache:
    """A cache on a slow disk: every batch takes `seconds` longer to read."""

    def __init__(self, cache: Cache, seconds: float) -> None:
        self._cache, self._seconds = cache, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def __len__(self) -> int:
        return len(self._cache)

    def read_batch(self, indices: list[int], **rest: Any) -> Batch:
        time.sleep(self._seconds)
        return self._cache.read_batch(indices, **rest)


def measure_training(folder: Path, settings: Settings) -> list[Figure]:
    write_cache(folder / "cache", settings.samples)
    cache = open_cache(folder / "cache")
    steps = 5 * settings.batches
    return [
        *_measure_waiting(folder, cache, steps),
        *_measure_own_work(folder, cache, steps),
        *_measure_memory(folder, settings),
    ]


def _measure_waiting(folder: Path, cache: Cache, steps: int) -> list[Figure]:
    group = f"Prefetching (batches of {BATCH} SDXL-like samples, {steps} steps)"
    model = BusyModel(STEP)
    result, _ = _train(folder, cache, model, steps, 2)
    figures = [
        Figure(group, "waiting for data, loading faster", 100 * result.data_wait, "% of the time", 1.0),
        Figure(
            group, "rows per model call, batch of 4", max(model.calls), "rows", float(BATCH), note="one call per batch"
        ),
    ]
    for name, load, busy in (("loading slower", 0.030, 0.010), ("both equal", 0.020, 0.020)):
        rounds = [_race(folder, cache, load, busy, max(steps // 10, 6)) for _ in range(ROUNDS)]
        both, without = (statistics.median(round[place] for round in rounds) for place in (0, 1))
        figures.append(Figure(group, f"step, {name}", both, "× max(load, train)", 1.05))
        figures.append(Figure(group, f"step without prefetching, {name}", without, "× max(load, train)"))
    return figures


def _race(folder: Path, cache: Cache, load: float, busy: float, steps: int) -> tuple[float, float]:
    """Step times with and without prefetching, as multiples of the longer of loading alone and training alone."""
    slow = SlowCache(cache, load)
    _, train_alone = _train(folder, cache, BusyModel(busy), steps, 2)
    longer = max(_time_loading(slow, steps), train_alone)
    _, both = _train(folder, slow, BusyModel(busy), steps, 2)
    _, without = _train(folder, slow, BusyModel(busy), steps, 0)
    return both / longer, without / longer


def _time_loading(dataset: Any, steps: int) -> float:
    """Median seconds per batch of the loader alone: reading, and drawing noise."""
    plans = islice(Order(read_columns(dataset), 0, BATCH).walk(), steps)
    seconds = []
    with Prefetcher(dataset, plans, BATCH, depth=0, draw=_draw) as loader:
        for _ in range(steps):
            seconds.append(_time(lambda: next(loader)))
    return statistics.median(seconds)


def _draw(plan: BatchPlan, batch: Batch) -> tuple[Tensor]:
    return (draw_noise(batch.latents, ObjectiveSettings(), seeded_generator(str(plan.number))),)


def _measure_own_work(folder: Path, cache: Cache, steps: int) -> list[Figure]:
    """Time per step without model, loss, backward, optimizer and loader."""
    spent: list[float] = [0.0]
    with (
        _watched(step_module, "evaluate", spent),
        _watched(BusyModel, "prepare", spent),
        _watched(torch.Tensor, "backward", spent),
        _watched(step_module.Stepper, "update", spent),
        _watched(Prefetcher, "__next__", spent),
    ):
        marks: list[tuple[float, float]] = []
        hooks = TrainHooks(progress=lambda progress: marks.append((time.perf_counter(), spent[0])))
        _train(folder, cache, BusyModel(STEP), steps, 2, hooks)
    own = [(b[0] - a[0]) - (b[1] - a[1]) for a, b in pairwise(marks)]
    group = "Overhead of the training loop (without model, loss, optimizer and loading)"
    median = statistics.median(own)
    return [Figure(group, "share of a step of 20 ms", 100 * median / STEP, "%", 2.0, note=f"{median * 1e6:.0f} µs")]


def _measure_memory(folder: Path, settings: Settings) -> list[Figure]:
    group = "Memory while training"
    if not (PROC / "smaps_rollup").exists():
        return []
    large = min(LARGE, 10 * settings.visited)
    peaks = []
    for count in (SMALL, large):
        _write_many(folder / f"many{count}", count)
        command = [sys.executable, "-m", __spec__.name, str(folder / f"many{count}"), str(folder)]
        peaks.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["peak"])
    note = f"{peaks[1] / 1e6:.0f} MB, {(peaks[1] - peaks[0]) / 1e6:+.1f} MB"
    return [Figure(group, f"peak, {large:,} samples against {SMALL:,}", peaks[1] / peaks[0], "×", 1.05, note=note)]


def _write_many(path: Path, count: int) -> None:
    """Many samples with few entries: the dataset grows, the time to write it hardly does."""
    with CacheWriter(path) as writer:
        for number in range(64):
            example = make_example(number)
            writer.put(f"latent {number}", {"samples": example.latent[..., :32, :32].contiguous()}, "latent")
            writer.put(f"text {number}", [[example.text[:, :8].contiguous(), {}]], "conditioning")
        for number in range(count):
            keys = {"latent": [f"latent {number % 64}"], "conditioning": [f"text {number % 64}"]}
            writer.sample(keys, SampleFacts(captions=f"caption {number % 64}", source=f"{number:08d}.png"))


def _train(
    folder: Path, dataset: Any, model: BusyModel, steps: int, prefetch: int, hooks: TrainHooks | None = None
) -> tuple[TrainResult, float]:
    """The result, and the median seconds per step."""
    ends: list[float] = []
    watch = hooks or TrainHooks(progress=lambda progress: ends.append(time.perf_counter()))
    config = TrainConfig(steps=steps, batch_size=BATCH, rank=2, targets="all", prefetch=prefetch, save_every=0)
    with open_run(folder / "runs", "bench") as run:
        result = train(model, dataset, config, run, hooks=watch)
    return result, statistics.median(b - a for a, b in pairwise(ends)) if len(ends) > 1 else 0.0


@contextmanager
def _watched(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Add up the time spent in a function inside the `with`."""
    original = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[0] += time.perf_counter() - began

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _time(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _watch_memory(path: str, folder: str) -> dict[str, int]:
    """Peak of anonymous memory after any step of a short training on this dataset."""
    peaks: list[int] = []
    hooks = TrainHooks(progress=lambda progress: peaks.append(anonymous_bytes()))
    _train(Path(folder), open_cache(path), BusyModel(0.0), 200, 2, hooks)
    return {"peak": max(peaks)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(_watch_memory(*sys.argv[1:])))
