"""Caches of musubi-tuner: `name_1024x0768_fk.safetensors` with latents, `name_fk_te.safetensors` with text encoder
outputs.

The architecture is in the metadata of each file, with the size of the image and, for text, the caption. Keys name
what a tensor is, its size and type: `latents_1x96x128_float32`, `latents_control_…`, `t5_vec_bfloat16`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import CacheError
from ..index import SampleFacts
from . import conditionings
from .files import read_metadata, read_tensors
from .found_sample import FoundSample, Skipped
from .image_folder import ImageFolder, walk_files, whole_text
from .latent_space import FLUX, FLUX2, HUNYUAN_VIDEO, HUNYUAN_VIDEO_15, WAN21, LatentSpace

_TRIED = 20  # files whose headers are read to recognize a folder; some may be damaged
_LATENT = re.compile(r"latents_(\d+x)?\d+x\d+_\w+")
_CONTROL = re.compile(r"latents_control_(\d+x)?\d+x\d+_\w+")
_NAME = re.compile(
    r"(?P<stem>.+?)(_(?P<frames>\d{5}-\d{3,}))?_(?P<width>\d{2,6})x(?P<height>\d{2,6})_(?P<arch>[a-z0-9]+)"
)


@dataclass(frozen=True)
class _Architecture:
    space: LatentSpace
    scaled: bool
    references: bool = False  # whether its control latents are ComfyUI's reference latents


# By the name in the metadata. HunyuanVideo's and Z-Image's latents are scaled only during training.
_ARCHITECTURES = {
    "hunyuan_video": _Architecture(HUNYUAN_VIDEO, False),
    "hunyuan_video_1_5": _Architecture(HUNYUAN_VIDEO_15, False),
    "wan": _Architecture(WAN21, True),
    "flux_kontext": _Architecture(FLUX, True, references=True),
    "flux_2_dev": _Architecture(FLUX2, True),
    "flux_2_klein_4b": _Architecture(FLUX2, True),
    "flux_2_klein_9b": _Architecture(FLUX2, True),
    "qwen_image": _Architecture(WAN21, True),
    "krea2": _Architecture(WAN21, True),
    "z_image": _Architecture(FLUX, False),
}


class MusubiCache:
    """A cache folder of musubi-tuner. The images may be in another folder."""

    def __init__(self, folder: Path, images: Path | None, names: list[str]) -> None:
        self.kind = "musubi-tuner"
        self._folder, self._names = folder, names
        self._images = ImageFolder(images or folder)

    def __iter__(self) -> Iterator[FoundSample | Skipped]:
        for name in self._names:
            if not name.endswith("_te.safetensors"):
                try:
                    yield self._read(name)
                except CacheError as error:
                    yield Skipped(name, str(error))

    def _read(self, name: str) -> FoundSample | Skipped:
        match = _NAME.fullmatch(name.removesuffix(".safetensors"))
        tensors, metadata = read_tensors(self._folder / name)
        known = _ARCHITECTURES.get(metadata.get("architecture", ""))
        if match is None or known is None:
            return Skipped(name, f"latents of {metadata.get('architecture', 'an unnamed model')!r}, which is not known")
        latent, references = _latents(tensors, known)
        stem = match["stem"]
        image = self._images.named(stem)
        texts, caption, without = self._text(stem, match["arch"], references)
        captions = (caption,) if caption else whole_text(self._images.text(stem))
        size = _count(metadata, "width"), _count(metadata, "height")
        crop = (0, 0, latent.shape[-1] * known.space.downscale, latent.shape[-2] * known.space.downscale)
        source = (image or stem) + (f"#{match['frames']}" if match["frames"] else "")
        facts = SampleFacts(tuple(captions), source, size, crop)
        if references and not texts:
            return Skipped(name, f"has control latents, which belong to its conditioning; {without}")
        return FoundSample(name, facts, [latent], [], texts, without)

    def _text(self, stem: str, arch: str, references: list[torch.Tensor]) -> tuple[list[Any], str, str]:
        """The conditioning of a sample and its caption, or why there is none."""
        path = self._folder / f"{stem}_{arch}_te.safetensors"
        if not path.exists():
            return [], "", "no text encoder outputs"
        caption = ""
        try:
            caption = read_metadata(path).get("caption1", "")
            made = _conditioning(arch, read_tensors(path)[0])
        except CacheError as error:
            return [], caption, f"{path.name}: {error}"
        if made is None:
            return [], caption, f"text encoder outputs of {arch} are not imported"
        if references:
            made[0][1]["reference_latents"] = references
        return [made], caption, ""


def open_musubi(folder: Path, images: Path | None) -> MusubiCache | None:
    names = [name for name in walk_files(folder, ".safetensors") if _NAME.fullmatch(name.removesuffix(".safetensors"))]
    for name in names[:_TRIED]:
        try:
            if "architecture" in read_metadata(folder / name):
                return MusubiCache(folder, images, names)
        except CacheError:
            continue
    return None


def _latents(tensors: Mapping[str, torch.Tensor], known: _Architecture) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The latent, and the reference latents of its conditioning."""
    own = [key for key in tensors if _LATENT.fullmatch(key)]
    control = [key for key in tensors if known.references and _CONTROL.fullmatch(key)]
    others = sorted(set(tensors) - set(own) - set(control))
    if len(own) != 1:
        raise CacheError(f"has {len(own)} latents, expected 1")
    if others:
        raise CacheError(
            f"has {others[0]}, an input of the model that is not imported; without it the sample is another"
        )
    made = [known.space.latent(tensors[key], known.scaled) for key in (*own, *control)]
    return made[0], made[1:]


def _conditioning(arch: str, tensors: Mapping[str, torch.Tensor]) -> Any:
    """A CONDITIONING, if that of this architecture is certainly the same in ComfyUI."""
    if arch == "fk":
        return conditionings.flux(_named(tensors, "t5_vec"), _named(tensors, "clip_l_pooler"))
    return conditionings.wan(_named(tensors, "varlen_t5")) if arch == "wan" else None


def _named(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The tensor of this name, which its type follows."""
    for key, tensor in tensors.items():
        if key.startswith(f"{name}_"):
            return tensor
    raise CacheError(f"has no {name}")


def _count(metadata: Mapping[str, str], name: str) -> int:
    text = metadata.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0
