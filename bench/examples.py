"""Made-up samples like those of SDXL, 449 KB each; a sample's number determines its bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

LATENT = (1, 4, 128, 128)
TEXT = (1, 77, 2048)
POOLED = (1, 1280)
SIZE_NAMES = ("width", "height", "crop_w", "crop_h", "target_width", "target_height")
LATENT_BYTES = 2 * 4 * 128 * 128
CONDITIONING_BYTES = 2 * (77 * 2048 + 1280)
EXAMPLE_BYTES = LATENT_BYTES + CONDITIONING_BYTES


@dataclass(frozen=True)
class Example:
    """One sample, with its latent and conditioning as ComfyUI has them."""

    number: int
    latent: torch.Tensor
    text: torch.Tensor
    pooled: torch.Tensor
    sizes: tuple[int, ...]

    @property
    def conditioning(self) -> list[Any]:
        return [[self.text, {"pooled_output": self.pooled, **dict(zip(SIZE_NAMES, self.sizes))}]]


def make_example(number: int, captions: int | None = None) -> Example:
    """The example of this number. `captions` limits the number of distinct conditionings."""
    caption = number if captions is None else number % captions
    texts = np.random.default_rng([1, caption])
    sizes = tuple(int(n) for n in texts.integers(1, 4096, len(SIZE_NAMES)))
    latent = _halves(np.random.default_rng([0, number]), LATENT)
    return Example(number, latent, _halves(texts, TEXT), _halves(texts, POOLED), sizes)


def make_examples(count: int, captions: int | None = None) -> Iterator[Example]:
    return (make_example(number, captions) for number in range(count))


def _halves(generator: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    # Random bits below the exponent of infinity: finite numbers that a disk cannot compress.
    bits = generator.integers(0, 0x3C00, shape, np.uint16)
    return torch.from_numpy(bits.view(np.int16)).view(torch.float16)
