"""Caches of OneTrainer: `image/<hash>/variation-0/aggregate.pt`, a list of images, and `0.pt`, `1.pt`, … with their
latents.

Latents are unscaled. The model is not recorded, but an unscaled latent of 4 or 16 channels is what ComfyUI's VAE
gives for it. Text is in folders of its own whose settings are only known as a hash, so it is not certain which text
belongs to which image: captions come from the caption files instead.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...errors import CacheError
from ..index import SampleFacts
from .files import is_record, read_pickled, read_whole
from .found_sample import FoundSample, Skipped
from .image_folder import ImageFolder, stem_of, walk_files
from .latent_space import LatentSpace, loss_weights

_LIST = "aggregate.pt"
_VARIATION = re.compile(r"variation-\d+")
_CHANNELS = (4, 16)
_KEYS = {"latent_image", "latent_mask", "original_resolution", "crop_offset"}
_LIST_BYTES = 1 << 30


class OneTrainerCache:
    """A cache folder of OneTrainer. The images are where its concepts have them, unless another folder is named."""

    def __init__(self, folder: Path, images: Path | None, names: list[str]) -> None:
        self.kind = "OneTrainer"
        self._folder, self._names = folder, names
        self._images = ImageFolder(images) if images else None

    def __iter__(self) -> Iterator[FoundSample | Skipped]:
        for name in self._names:
            path = self._folder / name
            try:
                listed = read_pickled(read_whole(path, _LIST_BYTES), name, _is_list)
            except CacheError as error:
                yield Skipped(name, str(error))
                continue
            for number, entry in enumerate(listed):
                place = f"{Path(name).parent.as_posix()}/{number}.pt"
                try:
                    yield self._read(place, entry)
                except CacheError as error:
                    yield Skipped(place, str(error))

    def _read(self, place: str, entry: dict[str, Any]) -> FoundSample:
        item = read_pickled(read_whole(self._folder / place), place, lambda value: is_record(value, ("latent_image",)))
        others = sorted(set(item) - _KEYS)
        if others:
            raise CacheError(f"has {others[0]}, an input of the model that is not imported")
        latent = _latent(item["latent_image"])
        path = entry["image_path"]
        image = self._images.matching(path) if self._images else None
        text = self._images.text(stem_of(image)) if self._images and image else None
        captions = tuple(line.strip() for line in (text or "").split("\n") if line.strip())
        height, width = _pair(item.get("original_resolution"))
        top, left = _pair(item.get("crop_offset"))
        below, across = _pair(entry["crop_resolution"])
        facts = SampleFacts(
            captions, image or path.replace("\\", "/").rpartition("/")[2], (width, height), (left, top, across, below)
        )
        without = "text of OneTrainer is not imported: its images and settings are not certain"
        return FoundSample(place, facts, [latent], _masks(item.get("latent_mask"), latent), [], without)


def open_onetrainer(folder: Path, images: Path | None) -> OneTrainerCache | None:
    found = [Path(name) for name in walk_files(folder, _LIST) if Path(name).name == _LIST]
    # Text has such folders too, in `text`; a list of images can also be given by itself.
    names = [one.as_posix() for one in found if "text" not in one.parts[:-2] and _VARIATION.fullmatch(one.parent.name)]
    return OneTrainerCache(folder, images, names) if names else None


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        is_record(entry, ("image_path", "crop_resolution")) and isinstance(entry["image_path"], str) for entry in value
    )


def _latent(stored: Any) -> torch.Tensor:
    if not isinstance(stored, torch.Tensor) or stored.ndim not in (3, 4):
        raise CacheError("its latent_image is not a latent [channels, (frames,) height, width]")
    if stored.shape[0] not in _CHANNELS:
        raise CacheError(
            f"its latent has {stored.shape[0]} channels; only those of 4 or 16 are certainly the same in ComfyUI"
        )
    return LatentSpace("OneTrainer", stored.shape[0], frames=stored.ndim == 4).latent(stored, False)


def _masks(mask: Any, latent: torch.Tensor) -> list[torch.Tensor]:
    """OneTrainer's mask is at the latent's size, with leading axes of 1."""
    if not isinstance(mask, torch.Tensor):
        return []
    while mask.ndim > 2 and mask.shape[0] == 1:
        mask = mask[0]
    return [loss_weights(mask, latent)]


def _pair(value: Any) -> tuple[int, int]:
    """The last two of a few whole numbers: (height, width), or (top, left). Zeros if they are missing."""
    if isinstance(value, torch.Tensor) and value.numel() <= 4:
        value = value.flatten().tolist()
    if not isinstance(value, list | tuple) or len(value) < 2 or not all(type(n) is int for n in value[-2:]):
        return 0, 0
    return value[-2], value[-1]
