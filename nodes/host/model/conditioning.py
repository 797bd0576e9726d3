"""Conditionings as a ComfyUI model takes them: one per row, joined if ComfyUI's classes allow it, plus image sizes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import comfy.model_base
import comfy.sampler_helpers
import comfy.samplers
import numpy as np
import torch
from torch import Tensor

from ....dataset_cache import Dataset, is_out_of_memory, map_tensors
from ....lora_train import TrainError, upload

log = logging.getLogger("streamcache")

Call = Callable[[Tensor, Tensor, dict[str, Any]], Tensor]  # of the model: latents, noise levels, inputs

# Handled by ComfyUI's sampler, which mixes several predictions per step; a training step makes only one.
SAMPLER_ONLY = ("area", "mask", "control", "gligen", "hooks", "start_percent", "end_percent", "default")
# Models trained with the original size and the crop of each image as inputs.
SIZE_CONDITIONED = (comfy.model_base.SDXL, comfy.model_base.SDXLRefiner, comfy.model_base.HunyuanDiT)


@dataclass(frozen=True)
class Rows:
    """Rows of a batch that go through the model in one call, with the model inputs for exactly these rows."""

    places: list[int]
    inputs: dict[str, Any]
    encoded: list[dict[str, Any]]  # the inputs of each row, not joined

    @classmethod
    def joined(cls, places: list[int], encoded: list[dict[str, Any]], device: torch.device) -> Rows:
        return cls(places, _cat(encoded, device), encoded)

    @property
    def form(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """Which inputs the model gets, and their sizes."""
        sizes = {name: tuple(value.shape) if isinstance(value, Tensor) else () for name, value in self.inputs.items()}
        return frozenset(sizes.items())

    def apart(self, device: torch.device) -> list[Rows]:
        return [Rows.joined([i], [row], device) for i, row in enumerate(self.encoded)]


class Calls:
    """Which rows of a batch go through the model in one call: those of one form, unless the model's code cannot take
    several rows with such inputs. HunyuanVideo's cannot if captions have masks."""

    def __init__(self) -> None:
        # Forms that need one call per row. Each size is tried for itself: a resumed run, which begins with another
        # one, calls the model in the same way.
        self._one_by_one: set[tuple[Any, ...]] = set()

    def predict(self, call: Call, x_t: Tensor, sigma: Tensor, conditioning: Sequence[Rows]) -> Tensor:
        """The predictions of all rows, each in its place."""
        if len(conditioning) == 1:
            return self._rows(call, x_t, sigma, conditioning[0])
        places = [upload(torch.tensor(rows.places), x_t.device) for rows in conditioning]
        parts = [self._rows(call, x_t[own], sigma[own], rows) for own, rows in zip(places, conditioning)]
        order = torch.tensor([place for rows in conditioning for place in rows.places])
        return torch.cat(parts)[upload(order.argsort(), x_t.device)]

    def _rows(self, call: Call, x: Tensor, sigma: Tensor, rows: Rows) -> Tensor:
        form, reason = (x.shape, rows.form), None
        if len(x) == 1 or form not in self._one_by_one:
            try:
                return call(x, sigma, rows.inputs)
            except RuntimeError as error:
                if len(x) == 1 or is_out_of_memory(error):
                    raise
                reason = error
        parts = [call(x[i : i + 1], sigma[i : i + 1], row.inputs) for i, row in enumerate(rows.apart(x.device))]
        if form not in self._one_by_one:  # after the calls: an error of the model itself has been raised
            if not self._one_by_one:
                log.warning("The model takes no batch of such captions; each sample gets its own call: %s", reason)
            self._one_by_one.add(form)
        return torch.cat(parts)


@dataclass(frozen=True)
class Sizes:
    """The columns of a dataset that size conditioning needs."""

    original: np.ndarray  # [samples, 2] width, height of the source; 0 if unknown
    crop: np.ndarray  # [samples, 4] left, top, width, height in the resized image

    @classmethod
    def of(cls, dataset: Dataset) -> Sizes:
        return cls(np.asarray(dataset.column("original_size")), np.asarray(dataset.column("crop")))

    def inputs(self, index: int, latent: Sequence[int], downscale: int) -> dict[str, int]:
        """The size inputs for a sample whose latent has this shape; the target is always its own bucket."""
        target = {"target_width": latent[-1] * downscale, "target_height": latent[-2] * downscale}
        width, height = (int(number) for number in self.original[index])
        left, top = (int(number) for number in self.crop[index][:2])
        if not (width and height):
            width, height, left, top = target["target_width"], target["target_height"], 0, 0
        return {"width": width, "height": height, "crop_w": left, "crop_h": top, **target}


def takes_sizes(model: Any) -> bool:
    return isinstance(model, SIZE_CONDITIONED)


def join(model: Any, latents: Tensor, conditionings: Sequence[Any], extras: Sequence[Mapping[str, Any]]) -> list[Rows]:
    """One `Rows` for the batch if all conditionings have the same form, otherwise one per form.

    ComfyUI's Python runs once for rows that share a conditioning, as those of another caption do.
    """
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    encoded: list[dict[str, Any]] = []
    for i, (conditioning, extra) in enumerate(zip(conditionings, extras, strict=True)):
        same = (id(conditioning), *sorted(extra.items()))
        if same not in known:
            known[same] = encode(model, latents[i : i + 1], conditioning, extra, f"row {i}")
        encoded.append(known[same])
    alike: list[list[int]] = []
    for place, row in enumerate(encoded):
        group = next((g for g in alike if comfy.samplers.cond_equal_size(encoded[g[0]], row)), None)
        alike.append([place]) if group is None else group.append(place)
    return [Rows.joined(places, [encoded[p] for p in places], latents.device) for places in alike]


def _cat(rows: list[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """The inputs of these rows as one. Some models make theirs on the CPU: those are sent without waiting."""
    inputs = comfy.samplers.cond_cat(rows)
    return {name: upload(value, device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


def encode(model: Any, latent: Tensor, conditioning: Any, extra: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The model inputs for one row, as `comfy.conds` objects. Stored values take precedence over `extra`."""
    entry = map_tensors(only_entry(conditioning, place), lambda tensor: tensor.to(latent.device))
    (cond,) = comfy.sampler_helpers.convert_cond([entry])
    # An empty latent image, as in text-to-image sampling: models that take one as input would see the answer.
    given = {"latent_image": torch.zeros_like(latent), "denoise_mask": None, "latent_shapes": [latent.shape], "seed": 0}
    with _sizes_on(model, latent.device):
        (cond,) = comfy.samplers.encode_model_conds(
            model.extra_conds, [{**extra, **cond}], latent, latent.device, "positive", **given
        )
    return {name: value.process_cond(batch_size=1, area=None) for name, value in cond["model_conds"].items()}


@contextmanager
def _sizes_on(model: Any, device: torch.device) -> Iterator[None]:
    """Inside, embedded sizes are on the device. SDXL embeds them on the CPU, and would fetch the text to join it."""
    embedder = getattr(model, "embedder", None)
    if embedder is None or not takes_sizes(model):
        yield
        return
    hook = embedder.register_forward_hook(lambda module, given, made: upload(made, device))
    try:
        yield
    finally:
        hook.remove()


def only_entry(conditioning: Any, place: str) -> list[Any]:
    """The one entry of a conditioning. Several entries, or one for a region or a range of steps, are an error."""
    if not isinstance(conditioning, (list, tuple)) or len(conditioning) != 1:
        found = len(conditioning) if isinstance(conditioning, (list, tuple)) else type(conditioning).__name__
        raise TrainError(
            f"{place}: found a conditioning with {found} entries, expected 1; "
            "join texts with ConditioningConcat instead of ConditioningCombine"
        )
    entry = conditioning[0]
    special = [name for name in SAMPLER_ONLY if entry[1].get(name) is not None]
    if special:
        raise TrainError(
            f'{place}: its conditioning has "{special[0]}", which only affects sampling; train on plain encoded text'
        )
    return [entry[0], dict(entry[1])]


def widths(conditioning: Any) -> dict[str, int]:
    """The last axis of each tensor of a conditioning by name, for messages."""
    text, extras = only_entry(conditioning, "conditioning")
    named = {"text": text, **extras}
    return {name: int(value.shape[-1]) for name, value in named.items() if isinstance(value, Tensor) and value.ndim}
