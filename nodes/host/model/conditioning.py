"""Conditionings as a host model takes them: each row's own, joined where the host's classes can be joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import comfy.sampler_helpers
import comfy.samplers
import torch
from torch import Tensor

from ....lora_train import TrainError, map_tensors

# What the host's sampler does outside of the model, by mixing several predictions: a training step has only one.
SAMPLER_ONLY = ("area", "mask", "control", "gligen", "hooks", "start_percent", "end_percent", "default")


@dataclass(frozen=True)
class Rows:
    """Rows of a batch that go through the model in one call, with the model's own inputs for exactly these."""

    places: list[int]
    inputs: dict[str, Any]


def join(model: Any, latents: Tensor, conditionings: Sequence[Any], told: Sequence[Mapping[str, Any]]) -> list[Rows]:
    """One `Rows` for the whole batch where all conditionings have one form, else one for each form."""
    encoded = [
        encode(model, latents[i : i + 1], conditioning, extras, f"row {i}")
        for i, (conditioning, extras) in enumerate(zip(conditionings, told, strict=True))
    ]
    alike: list[list[int]] = []
    for place, row in enumerate(encoded):
        group = next((g for g in alike if comfy.samplers.cond_equal_size(encoded[g[0]], row)), None)
        alike.append([place]) if group is None else group.append(place)
    return [Rows(places, comfy.samplers.cond_cat([encoded[p] for p in places], latents.device)) for places in alike]


def encode(model: Any, latent: Tensor, conditioning: Any, extras: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The model's inputs for one row, as objects of the host's `comfy.conds`. `extras` yield to what is stored."""
    entry = map_tensors(only_entry(conditioning, place), lambda tensor: tensor.to(latent.device))
    (cond,) = comfy.sampler_helpers.convert_cond([entry])
    # An empty latent image, as in text-to-image sampling: models that see one beside the noise would see the answer.
    given = {"latent_image": torch.zeros_like(latent), "denoise_mask": None, "latent_shapes": [latent.shape], "seed": 0}
    (cond,) = comfy.samplers.encode_model_conds(
        model.extra_conds, [{**extras, **cond}], latent, latent.device, "positive", **given
    )
    return {name: value.process_cond(batch_size=1, area=None) for name, value in cond["model_conds"].items()}


def only_entry(conditioning: Any, place: str) -> list[Any]:
    """The one entry of a conditioning; several, or one for a part of the picture or of the steps, are refused."""
    if not isinstance(conditioning, (list, tuple)) or len(conditioning) != 1:
        found = len(conditioning) if isinstance(conditioning, (list, tuple)) else type(conditioning).__name__
        raise TrainError(
            f"{place}: found a conditioning with {found} entries, expected 1; "
            "join texts by ConditioningConcat instead of ConditioningCombine"
        )
    entry = conditioning[0]
    special = [name for name in SAMPLER_ONLY if entry[1].get(name) is not None]
    if special:
        raise TrainError(
            f'{place}: its conditioning has "{special[0]}", which only sampling knows; train on the plain encoded text'
        )
    return [entry[0], dict(entry[1])]


def widths(conditioning: Any) -> dict[str, int]:
    """The last axis of a conditioning's tensors by name, for messages."""
    text, extras = only_entry(conditioning, "conditioning")
    named = {"text": text, **extras}
    return {name: int(value.shape[-1]) for name, value in named.items() if isinstance(value, Tensor) and value.ndim}
