"""Caches of ai-toolkit: `_latent_cache/name_<hash>.safetensors` and `_t_e_cache/name_<hash>.safetensors` beside the
images.

The metadata of a latent says which space it is in and how the image was scaled and cropped; latents are scaled. The
hash in the name of a text encoder output is that of its caption, so it is known whether it belongs to the caption
file as it is now.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ...errors import CacheError
from ..format import is_regular
from ..index import SampleFacts
from . import conditionings
from .files import read_tensors
from .found_sample import FoundSample, Skipped
from .image_folder import ImageFolder, stem_of, walk_files
from .latent_space import FLUX, FLUX2, SD1, SD3, SDXL, WAN21, LatentSpace

_LATENTS, _TEXTS = "_latent_cache", "_t_e_cache"
_HASH = 22  # characters of an MD5 in base64
_SPACES: dict[str, LatentSpace] = {
    "sd1": SD1,
    "sdxl": SDXL,
    "sd3": SD3,
    **dict.fromkeys(("flux1", "flux", "flex2", "chroma", "lumina2", "hidream", "zimage"), FLUX),
    **dict.fromkeys(("flux2", "flux2_klein_4b", "flux2_klein_9b"), FLUX2),
    **dict.fromkeys(("wan21", "wan22_14b", "qwen_image", "krea2"), WAN21),
}
_TEXT_SPACES = {"sdxl": ("sdxl",), "flux1": ("flux",)}  # of those whose text is imported: the names in the hash
_PLAIN_KEYS = {"latent", "tensor", "num_frames"}  # `tensor` is the image itself


class AiToolkitCache:
    """A folder of images with the caches of ai-toolkit below it."""

    def __init__(self, folder: Path, images: Path | None, names: list[str]) -> None:
        self.kind = "ai-toolkit"
        self._folder, self._names = folder, names
        self._images = ImageFolder(images or folder)

    def __iter__(self) -> Iterator[FoundSample | Skipped]:
        for name in self._names:
            try:
                yield self._read(name)
            except CacheError as error:
                yield Skipped(name, str(error))

    def _read(self, name: str) -> FoundSample | Skipped:
        tensors, metadata = read_tensors(self._folder / name)
        version = metadata.get("latent_space_version", "")
        space = _SPACES.get(version)
        if space is None:
            return Skipped(name, f"latents of {version!r}, whose scaling is not known")
        others = sorted(set(tensors) - _PLAIN_KEYS)
        if others or "latent" not in tensors:
            return Skipped(name, f"has {others[0]}, which is not imported" if others else "has no latent")
        if tensors["latent"].dtype == torch.uint8:
            return Skipped(name, "contains pixels, not latents")
        above = Path(name).parent.parent.as_posix()
        within = "" if above == "." else f"{above}/"
        stem = within + Path(name).stem[: -_HASH - 1]
        image = self._image(within, stem, metadata)
        latent = space.latent(tensors["latent"], True)
        text = self._images.text(stem)
        captions = (text.strip(),) if text and text.strip() else ()
        words, without = self._text(within, stem, version, text or "")
        crop = tuple(_number(metadata, f"crop_{side}") for side in ("x", "y", "width", "height"))
        facts = SampleFacts(captions, image or stem, self._images.size(image), (crop[0], crop[1], crop[2], crop[3]))
        return FoundSample(name, facts, [latent], [], words, without)

    def _image(self, within: str, stem: str, metadata: Mapping[str, str]) -> str | None:
        file = metadata.get("filename", "")
        if file and "/" not in file and stem_of(file) == stem.removeprefix(within):
            return self._images.matching(within + file) or self._images.named(stem)
        return self._images.named(stem)

    def _text(self, within: str, stem: str, version: str, text: str) -> tuple[list[Any], str]:
        """The conditioning of the caption as it is in its file now, or why there is none."""
        if version not in _TEXT_SPACES:
            return [], f"text encoder outputs of {version} are not imported"
        name = stem.removeprefix(within)
        for space in _TEXT_SPACES[version]:
            for caption in (text, ", ".join(text.split(","))):
                path = self._folder / f"{within}{_TEXTS}/{name}_{_caption_hash(caption, space)}.safetensors"
                if is_regular(path):
                    return self._conditioning(path, version)
        return [], "no text encoder output of its caption"

    def _conditioning(self, path: Path, version: str) -> tuple[list[Any], str]:
        try:
            tensors, _ = read_tensors(path)
            if set(tensors) - {"attention_mask"} != {"text_embed", "pooled_embed"}:
                return [], f"{path.name}: contains {', '.join(sorted(tensors))}, expected text_embed and pooled_embed"
            states, pooled = _row(tensors["text_embed"]), _row(tensors["pooled_embed"])
            make = conditionings.flux if version == "flux1" else conditionings.sdxl_joined
            return [make(states, pooled)], ""
        except CacheError as error:
            return [], f"{path.name}: {error}"


def open_ai_toolkit(folder: Path, images: Path | None) -> AiToolkitCache | None:
    names = [name for name in walk_files(folder, ".safetensors") if Path(name).parent.name == _LATENTS]
    return AiToolkitCache(folder, images, names) if names else None


def _caption_hash(caption: str, space: str) -> str:
    facts = {"caption": caption, "text_embedding_space_version": space, "text_embedding_version": 1}
    digest = hashlib.md5(json.dumps(facts, sort_keys=True).encode(), usedforsecurity=False).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """A batch of one without its first axis."""
    if tensor.ndim < 2 or tensor.shape[0] != 1:
        raise CacheError(f"a text encoder output of shape {tuple(tensor.shape)}, expected [1, …]")
    return tensor[0]


def _number(metadata: Mapping[str, str], name: str) -> int:
    text = metadata.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0
