"""Encoders with a fixed duration that leave the processor free, as a GPU does, and images to encode."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image


class FixedImages:
    """Takes `seconds` per image and returns a latent shaped like SDXL's."""

    downscale = 8
    identity = "fixed images"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.spent = 0.0

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        yield

    def encode(self, items: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        started = time.perf_counter()
        time.sleep(self.seconds * len(items))
        height, width = items[0].shape[0] // self.downscale, items[0].shape[1] // self.downscale
        made = [{"samples": torch.full((1, 4, height, width), float(item[0, 0, 0])).half()} for item in items]
        self.spent += time.perf_counter() - started
        return made


class FixedTexts:
    """Takes no time and returns a conditioning shaped like SDXL's, but narrower."""

    identity = "fixed texts"

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        yield

    def encode(self, items: list[str]) -> list[list]:
        return [[[torch.full((1, 77, 64), float(len(item))), {}]] for item in items]


@contextlib.contextmanager
def private_state(folder: Path) -> Iterator[None]:
    """Keep the memory of source files in the benchmark's own folder."""
    before = os.environ.get("STREAMCACHE_STATE_DIR")
    os.environ["STREAMCACHE_STATE_DIR"] = str(folder / "state")
    try:
        yield
    finally:
        os.environ.pop("STREAMCACHE_STATE_DIR")
        if before is not None:
            os.environ["STREAMCACHE_STATE_DIR"] = before


def save_image(path: Path, side: int, seed: int = 0, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8)
    Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC).save(path, **options)
