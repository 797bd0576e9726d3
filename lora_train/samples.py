"""Sample images while training: the same captions and seeds every time, and a grid of them over the run."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..dataset_cache import Dataset, Samples, realize, replace_file
from ..errors import TrainError
from .config import TrainConfig
from .denoiser import Denoiser
from .run import draw_grid, may_be_file

# Latents [B, C, h, w] → one image per row.
Decode = Callable[[torch.Tensor], Sequence[Image.Image]]

SAMPLE_TIMES = 8  # sample images per run if a VAE is given and no interval
_FILE = re.compile(r"step-(\d{1,12})-(\d{1,4})\.png")


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
            data = io.BytesIO()
            image.save(data, "PNG")
            replace_file(self.folder / sample_file_name(step, number), data.getvalue())
            images.append(image)
        return images

    def has_drawn(self, step: int) -> bool:
        """Whether all images of this step are there, also from before a resume."""
        return all(may_be_file(self.folder / sample_file_name(step, number)) for number in range(len(self.prompts)))


def with_sample_images(config: TrainConfig) -> TrainConfig:
    """The same settings with an interval for sample images, if none is set. For callers that have a VAE."""
    if config.sample_every:
        return config
    steps = config.steps if not config.epochs else SAMPLE_TIMES * 200
    return replace(config, sample_every=max(steps // SAMPLE_TIMES, 1))


def sample_file_name(step: int, prompt: int) -> str:
    """The file name of a prompt's image at a step."""
    return f"step-{step:08}-{prompt}.png"


def sample_images(folder: Path) -> dict[int, dict[int, Path]]:
    """The images in a run's folder of samples: by step in order, then by prompt in order."""
    found: dict[int, dict[int, Path]] = {}
    for path in folder.glob("step-*.png"):
        match = _FILE.fullmatch(path.name)
        if match and may_be_file(path):
            found.setdefault(int(match[1]), {})[int(match[2])] = path
    return {step: dict(sorted(found[step].items())) for step in sorted(found)}


def check_samples(samples: Samples, config: TrainConfig, decode: Decode | None, prompts: Sequence[Any] | None) -> None:
    """Refuse sample images that cannot be drawn: without a VAE, or of captions that these samples do not have."""
    if not config.sample_every:
        return
    if decode is None:
        raise TrainError(
            f"sample_every = {config.sample_every}: sample images need a VAE; connect one, or set sample_every = 0"
        )
    if not prompts:
        _find_captions(samples, config.sample_captions)


def make_sampler(
    denoiser: Denoiser,
    dataset: Dataset,
    config: TrainConfig,
    folder: Path,
    decode: Decode | None,
    prompts: Sequence[Prompt] | None,
) -> Sampler | None:
    """The sampler of a run, or None if it draws no sample images."""
    check_samples(dataset, config, decode, prompts)
    if not config.sample_every or decode is None:
        return None
    prompts = prompts or find_prompts(dataset, config.sample_captions)
    return Sampler(denoiser, prompts, decode, folder, config.sample_seed, config.sample_steps)


def make_prompts(dataset: Dataset, captions: Sequence[str], conditionings: Sequence[Any]) -> list[Prompt]:
    """Prompts that are not from the dataset, at the size of its largest bucket."""
    if not conditionings:
        return []
    bucket = max(dataset.buckets().items(), key=lambda item: len(item[1]))[0]
    return [Prompt(caption, words, tuple(bucket.shape)) for caption, words in zip(captions, conditionings)]


def find_prompts(dataset: Dataset, captions: Sequence[str]) -> list[Prompt]:
    """Prompts with the cached conditionings of these captions, or of the first sample if none are given."""
    return [_prompt(dataset, *place) for place in _find_captions(dataset, captions) or [(0, 0)]]


def draw_history(folder: Path, captions: Sequence[str] = (), rows: int = 8) -> Image.Image | None:
    """A grid of the saved images: one row per step (evenly chosen if there are many), one column per prompt."""
    found = sample_images(folder)
    if not found:
        return None
    steps = list(found)
    if len(steps) > rows:
        steps = [steps[round(place * (len(steps) - 1) / (rows - 1))] for place in range(rows)]
    grid = [[Image.open(path) for path in found[step].values()] for step in steps]
    return draw_grid(grid, [f"step {step:,}" for step in steps], captions, "Sample images over the run", cell=160)


def latest_image(folder: Path, step: int) -> Path | None:
    """The first prompt's last image up to a step; None if none was drawn since the beginning."""
    drawn = [images[0] for at, images in sample_images(folder).items() if 0 < at <= step and 0 in images]
    return drawn[-1] if drawn else None


def remove_later_images(folder: Path, step: int) -> None:
    """Delete images of steps that a resumed run will repeat."""
    for at, images in sample_images(folder).items():
        if at > step or not step:
            for path in images.values():
                path.unlink()


def _find_captions(samples: Samples, captions: Sequence[str]) -> list[tuple[int, int]]:
    """Sample and variant of each caption; one that no sample has is refused."""
    wanted: dict[str, tuple[int, int]] = {}
    for index in range(len(samples)) if captions else ():
        for variant, caption in enumerate(samples.captions(index)):
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
    return [wanted[caption] for caption in captions]


def _prompt(dataset: Dataset, index: int, variant: int) -> Prompt:
    sample = dataset.sample(index, {"conditioning": variant})
    shape = tuple(sample.latent["samples"].shape[1:])
    return Prompt(sample.caption, realize(sample.conditioning), shape)
