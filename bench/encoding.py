"""Encoding: the whole pipeline against the encoder alone, a second run against the first, and memory."""

import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from ..dataset_cache import FolderSource, Plan, Transform, encode, make_plan
from ..dataset_cache import Settings as PlanSettings
from .encoders import FixedImages, FixedTexts, private_state, save_image
from .memory import PROC, peak_bytes
from .rounds import Settings, take_turns
from .table import Figure

SECONDS = 0.05  # per image: a GPU faster than those that people train on
BATCH = 4
ENCODER, PIPELINE, AGAIN = "the encoder alone", "the whole pipeline", "a second run"


def measure_encoding(folder: Path, settings: Settings) -> list[Figure]:
    source = folder / "set"
    for number in range(settings.encoded):
        save_image(source / f"{number:05}.jpg", 1024, number, quality=92)
        (source / f"{number:05}.txt").write_text(f"caption {number}")
    pipeline = _Pipeline(source, folder / "cache")
    with private_state(folder):
        contestants = {ENCODER: lambda _: _encode_alone(settings.encoded), PIPELINE: lambda _: pipeline.run()}
        times = take_turns(contestants, [[0]] * (settings.encode_rounds + 1), between=pipeline.run_again)
    again = statistics.median(pipeline.again)
    group = f"Encoding {settings.encoded} images of 1024×1024, {SECONDS * 1000:.0f} ms each"
    small, large = (_peak(folder, n) for n in (settings.encoded, 10 * settings.encoded))
    return [
        *(Figure(group, name, times.median(name), "s") for name in contestants),
        Figure(group, f"{PIPELINE}, against the encoder", times.ratio(PIPELINE, ENCODER), "×", 1.08),
        Figure(group, f"{AGAIN}, against the first", 100 * again / times.median(PIPELINE), "%", 1),
        Figure(group, "peak memory", large / 1e6, "MB", note=f"{10 * settings.encoded} images of 256×256"),
        Figure(group, "peak memory, against a tenth of the images", large / small if small else 1.0, "×", 1.05),
    ]


class _Pipeline:
    """First runs, each to a new cache, and a second run after each."""

    def __init__(self, source: Path, cache: Path) -> None:
        self.source, self.cache = source, cache
        self.again: list[float] = []

    def run(self) -> None:
        report = encode(_plan(self.source), self.cache)
        assert not report.unchanged

    def run_again(self) -> None:
        if self.cache.exists():
            started = time.perf_counter()
            assert encode(_plan(self.source), self.cache).unchanged
            self.again.append(time.perf_counter() - started)
            shutil.rmtree(self.cache)


def _encode_alone(images: int) -> None:
    encoder, item = FixedImages(SECONDS), torch.zeros(1024, 1024, 3)
    for start in range(0, images, BATCH):
        encoder.encode([item] * min(BATCH, images - start))


def _plan(source: Path, side: int = 1024, seconds: float = SECONDS) -> Plan:
    settings = PlanSettings(Transform((side,)), batch_size=BATCH)
    return make_plan(
        FolderSource(source), image_encoder=FixedImages(seconds), text_encoder=FixedTexts(), settings=settings
    )


def _peak(folder: Path, images: int) -> int:
    """Peak memory of a separate process; 0 if the system does not report it."""
    if not (PROC / "status").exists():
        return 0
    command = [sys.executable, "-m", __spec__.name, str(folder / f"peak-{images}"), str(images)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _watch(folder: Path, images: int) -> int:
    for number in range(images):
        save_image(folder / "set" / f"{number:05}.png", 256, number)
        (folder / "set" / f"{number:05}.txt").write_text(f"caption {number}")
    with private_state(folder):
        encode(_plan(folder / "set", 256, 0.0005), folder / "cache")
    return peak_bytes()


if __name__ == "__main__":
    print(json.dumps(_watch(Path(sys.argv[1]), int(sys.argv[2]))))
