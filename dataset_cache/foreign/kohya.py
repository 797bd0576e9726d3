"""Caches of kohya's sd-scripts: an `.npz` of latents beside each image, another of text encoder outputs.

`name_1024x0768_flux.npz` has `latents`, `original_size` and `crop_ltrb`; newer files have several resolutions, each
with its size as a suffix of these keys (`latents_96x128`, height × width of the latent). Latents of SD, SDXL, SD3
and HunyuanImage are unscaled, those of Flux, Lumina and Anima are scaled.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...errors import CacheError
from ..index import SampleFacts
from ..sources import folder_repeats
from . import conditionings
from .files import Npz
from .found_sample import FoundSample, Skipped
from .image_folder import ImageFolder, first_line_of, walk_files
from .latent_space import FLUX, HUNYUAN_IMAGE, SD3, SDXL, WAN21, LatentSpace, loss_weights

# By suffix: the space, and whether latents are scaled. SD and SDXL differ only in the scale, which is not applied.
_KINDS: dict[str, tuple[LatentSpace, bool]] = {
    "sd": (SDXL, False),
    "sdxl": (SDXL, False),
    "": (SDXL, False),
    "sd3": (SD3, False),
    "flux": (FLUX, True),
    "lumina": (FLUX, True),
    "hi": (HUNYUAN_IMAGE, False),
    "anima": (WAN21, True),
}
_NAME = re.compile(r"(?P<stem>.+)_(?P<width>\d{2,6})x(?P<height>\d{2,6})_(?P<kind>[a-z0-9]+)\.npz")
_LATENTS = re.compile(r"latents(_\d+x\d+)?")
_TEXT = {"sdxl": "_te_outputs.npz", "sd3": "_sd3_te.npz", "flux": "_flux_te.npz"}
_TEXT_NAME = re.compile(r".+_te(_outputs)?\.npz")


class KohyaCache:
    """A folder of images with the caches of sd-scripts beside them."""

    def __init__(self, folder: Path, images: Path | None, names: list[str]) -> None:
        self.kind = "kohya sd-scripts"
        self._folder, self._names = folder, names
        self._images = ImageFolder(images or folder)

    def __iter__(self) -> Iterator[FoundSample | Skipped]:
        for name in self._names:
            if not _TEXT_NAME.fullmatch(name):
                try:
                    yield from self._read(name)
                except CacheError as error:
                    yield Skipped(name, str(error))

    def _read(self, name: str) -> Iterator[FoundSample | Skipped]:
        match = _NAME.fullmatch(name)
        stem, kind = (match["stem"], match["kind"]) if match else (name.removesuffix(".npz"), "")
        if kind not in _KINDS:
            yield Skipped(name, f'latents of an unknown model "{kind}", whose scaling is not known')
            return
        space, scaled = _KINDS[kind]
        texts, without = self._text(stem, kind)
        with Npz(self._folder / name) as arrays:
            sizes = [found[1] or "" for key in arrays if (found := _LATENTS.fullmatch(key))]
            if not sizes:
                yield Skipped(name, "has no latents")
            for size in sizes:
                yield self._sample(name, stem, arrays, size, (space, scaled), texts, without)

    def _sample(
        self,
        name: str,
        stem: str,
        arrays: Npz,
        size: str,
        kind: tuple[LatentSpace, bool],
        texts: list[Any],
        without: str,
    ) -> FoundSample:
        space, scaled = kind
        stored = [arrays[f"{key}{size}"] for key in ("latents", "latents_flipped") if f"{key}{size}" in arrays]
        latents = [space.latent(one, scaled) for one in stored]
        image = self._images.named(stem)
        width, height = (arrays.numbers(f"original_size{size}") or self._images.size(image))[:2]
        left, top = (arrays.numbers(f"crop_ltrb{size}") or (0, 0))[:2]
        across, down = latents[0].shape[-1] * space.downscale, latents[0].shape[-2] * space.downscale
        facts = SampleFacts(
            tuple(first_line_of(self._images.text(stem))),
            image or name,
            (width, height),
            (left, top, across, down),
            folder_repeats(Path(name).parent.name),
        )
        masks = _masks(arrays, f"alpha_mask{size}", latents)
        return FoundSample(f"{name}{size}", facts, latents, masks, texts, without)

    def _text(self, stem: str, kind: str) -> tuple[list[Any], str]:
        """The conditioning of an image, or why there is none."""
        # Old files without a suffix are of SD or SDXL; only SDXL's text is cached.
        suffix = _TEXT.get("sdxl" if kind == "" else kind)
        if suffix is None:
            return [], f"text encoder outputs of {kind} are not imported"
        path = self._folder / f"{stem}{suffix}"
        if not path.exists():
            return [], "no text encoder outputs"
        try:
            with Npz(path) as arrays:
                return [_READERS[suffix](arrays)], ""
        except (CacheError, KeyError) as error:
            return [], f"{path.name}: {error}"


def open_kohya(folder: Path, images: Path | None) -> KohyaCache | None:
    names = walk_files(folder, ".npz")
    return KohyaCache(folder, images, names) if names else None


def _masks(arrays: Npz, key: str, latents: list[torch.Tensor]) -> list[torch.Tensor]:
    """Loss weights at the latent's size from a mask in pixels, for each latent; flipped ones are mirrored."""
    if key not in arrays:
        return []
    weights = loss_weights(arrays[key], latents[0])
    return [weights, weights.flip(-1)][: len(latents)]


def _read_sdxl(arrays: Npz) -> Any:
    return conditionings.sdxl(arrays["hidden_state1"], arrays["hidden_state2"], arrays["pool2"])


def _read_flux(arrays: Npz) -> Any:
    _refuse_masked(arrays, "apply_t5_attn_mask")
    return conditionings.flux(arrays["t5_out"], arrays["l_pooled"])


def _read_sd3(arrays: Npz) -> Any:
    _refuse_masked(arrays, "apply_t5_attn_mask")
    _refuse_masked(arrays, "apply_lg_attn_mask")
    return conditionings.sd3(arrays["lg_out"], arrays["t5_out"], arrays["lg_pooled"])


def _refuse_masked(arrays: Npz, name: str) -> None:
    if any(arrays.numbers(name)):
        raise CacheError(f"was made with {name}, for which ComfyUI has no equivalent")


_READERS = {"_te_outputs.npz": _read_sdxl, "_flux_te.npz": _read_flux, "_sd3_te.npz": _read_sd3}
