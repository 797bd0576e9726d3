"""Sample images while training: the same captions and seeds every time, and a grid of them over the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..dataset_cache import Dataset, realize
from .denoiser import Denoiser
from .errors import TrainError
from .run import draw_grid

# Latents [B, C, h, w] → one image per row.
Decode = Callable[[torch.Tensor], Sequence[Image.Image]]

_FILE = re.compile(r"step-(\d+)-(\d+)\.png")


@dataclass(frozen=True)
class Prompt:
    """What to sample: a caption, its conditioning and the latent shape [C, (T,) h, w]."""

    caption: str
    conditioning: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Sampler:
    """Samples an image for every prompt and saves it to a folder."""

    denoiser: Denoiser
    prompts: Sequence[Prompt]
    decode: Decode
    folder: Path
    seed: int = 1
    steps: int = 20

    def draw(self, step: int) -> list[Image.Image]:
        """One image per prompt from the current weights, saved as samples/step-…-….png."""
        self.folder.mkdir(parents=True, exist_ok=True)
        images = []
        for number, prompt in enumerate(self.prompts):
            with torch.no_grad():
                latents = self.denoiser.sample(prompt.conditioning, prompt.shape, self.seed + number, self.steps)
            image = self.decode(latents)[0]
            image.save(self.folder / sample_file_name(step, number))
            images.append(image)
        return images


def sample_file_name(step: int, prompt: int) -> str:
    """The file name of a prompt's image at a step."""
    return f"step-{step:08}-{prompt}.png"


def find_prompts(dataset: Dataset, captions: Sequence[str]) -> list[Prompt]:
    """Prompts with the cached conditionings of these captions, or of the first sample if none are given."""
    if not captions:
        return [_prompt(dataset, 0, 0)]
    wanted: dict[str, tuple[int, int]] = {}
    for index in range(len(dataset)):
        for variant, caption in enumerate(dataset.captions(index)):
            if caption in captions:
                wanted.setdefault(caption, (index, variant))
        if len(wanted) == len(set(captions)):
            break
    for caption in captions:
        if caption not in wanted:
            raise TrainError(
                f'sample_captions: "{caption}" is not a caption of the dataset, and no text encoder is loaded during '
                "training; use captions of the dataset"
            )
    return [_prompt(dataset, *wanted[caption]) for caption in captions]


def draw_history(folder: Path, rows: int = 8) -> Image.Image | None:
    """A grid of the saved images: one row per step (evenly chosen if there are many), one column per prompt."""
    found: dict[int, dict[int, Path]] = {}
    for path in sorted(folder.glob("step-*.png")):
        match = _FILE.fullmatch(path.name)
        if match:
            found.setdefault(int(match[1]), {})[int(match[2])] = path
    if not found:
        return None
    steps = sorted(found)
    if len(steps) > rows:
        steps = [steps[round(place * (len(steps) - 1) / (rows - 1))] for place in range(rows)]
    grid = [[Image.open(path) for _, path in sorted(found[step].items())] for step in steps]
    return draw_grid(grid, [f"step {step}" for step in steps], title="Samples over the run", cell=160)


def remove_later_images(folder: Path, step: int) -> None:
    """Delete images of steps that a resumed run will repeat."""
    for path in folder.glob("step-*.png"):
        match = _FILE.fullmatch(path.name)
        if match and int(match[1]) > step:
            path.unlink()


def _prompt(dataset: Dataset, index: int, variant: int) -> Prompt:
    sample = dataset.sample(index, {"conditioning": variant})
    shape = tuple(sample.latent["samples"].shape[1:])
    return Prompt(sample.caption, realize(sample.conditioning), shape)
