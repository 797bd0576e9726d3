"""The sizes of images that a run trains on: in pixels, and which of them the model has taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...dataset_cache import Dataset, is_out_of_memory
from ...errors import TrainError

VAE_SCALE = 8  # image pixels per latent along an axis, where neither cache nor model says


@dataclass
class KnownSizes:
    """The sizes of images that the model has taken; an error on another size names it."""

    dataset: Dataset
    scale: int = VAE_SCALE  # image pixels per latent along an axis
    shapes: set[tuple[int, ...]] = field(default_factory=set)

    @contextmanager
    def explained(self, sample: int, shape: Sequence[int]) -> Iterator[None]:
        """Around a model call with latents of this shape [B, …], `sample` among them."""
        known = tuple(shape[1:]) in self.shapes
        try:
            yield
        except TrainError:
            raise
        except Exception as error:
            if known or is_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            # If images of another size have worked, this size is the reason; the first batch can fail for any other.
            if self.shapes:
                found = f"the model cannot take images of this size ({reason});"
            else:
                found = f"the first batch failed ({reason}); if the model cannot take images of this size,"
            remedy = "encode with another resolution, or remove these samples"
            raise TrainError(f"{self._name(sample)}: {found} {remedy}") from error
        if not known:
            self.shapes.add(tuple(shape[1:]))

    def pixels(self, samples: Sequence[int]) -> list[int]:
        """The number of pixels of these samples' images."""
        return [int(self._pixels[sample]) for sample in samples]

    @cached_property
    def _pixels(self) -> np.ndarray:
        crops = np.asarray(self.dataset.column("crop"))
        found = crops[:, 2].astype(np.int64) * crops[:, 3]
        for bucket, rows in self.dataset.buckets().items():
            rows = np.asarray(rows)
            unknown = rows[found[rows] <= 0]
            found[unknown] = self.scale**2 * bucket.shape[-2] * bucket.shape[-1]
        return found

    def _name(self, sample: int) -> str:
        """The images of this sample's bucket."""
        width, height = map(int, self.dataset.column("crop")[sample][2:])
        if width > 0 and height > 0:
            return f"bucket {width}×{height}"
        return f"sample {sample} ({self.dataset.source(sample)})"
