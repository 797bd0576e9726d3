"""Fused layers that files split (`to_q`, `to_k`, `to_v` of a `qkv`): joining a file's entries, and splitting a layer's
parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...errors import TrainError
from .layer import Layer
from .lora_file import Entry

_SCATTERED = ("diff", "diff_b", "dora_scale")
_JOINED = {"lora_up.weight", "lora_down.weight", "alpha", *_SCATTERED}
_BY_ROW = {"lora_up.weight", "hada_w1_a", "hada_w2_a", "dora_scale", "diff", "diff_b"}
_FOR_ALL_ROWS = {"lora_down.weight", "hada_w1_b", "hada_w2_b", "alpha"}


def join_entries(entries: Sequence[Entry], layer: Layer, where: str) -> dict[str, Tensor]:
    """The parts of the whole layer, with the same change of its weight.

    The rank is the sum of the entries' ranks; that of one if they share their down, as a layer that was split does.
    """
    if len(entries) == 1 and entries[0].rows is None:
        return entries[0].parts
    problem = next(
        (f"{name} cannot be joined" for entry in entries for name in sorted(entry.parts.keys() - _JOINED)), ""
    )
    if not problem and _has(entries, "dora_scale") and not _scale_all_rows(entries, layer):
        problem = "dora_scale cannot be joined (it is not one number for every row of the layer)"
    if problem:
        names = ", ".join(entry.prefix for entry in entries)
        raise TrainError(
            f"{where}: one layer in this model, split in the file ({names}); {problem}, only LoRAs can be joined, and "
            "DoRAs along the output axis"
        )
    parts = {name: _scattered(entries, name, layer, where) for name in _SCATTERED if _has(entries, name)}
    loras = [entry for entry in entries if "lora_down.weight" in entry.parts]
    return parts if not loras else parts | _joined_loras(loras, layer, where)


def split_parts(parts: Mapping[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
    """The parts of some rows of a layer, which change them exactly as the whole does."""
    return {name: part[list(rows)] if name in _BY_ROW else part for name, part in parts.items()}


def unsplittable(parts: Mapping[str, Tensor]) -> str:
    """A part whose rows do not change rows of the layer on their own, "" if there is none."""
    scale = parts.get("dora_scale")
    if scale is not None and scale.shape[0] == 1:
        return "a DoRA along the input axis"
    return next((name for name in parts if name not in _BY_ROW | _FOR_ALL_ROWS), "")


def ranks_of(entries: Sequence[Entry]) -> list[int]:
    """The ranks that a file's LoRAs have before they are joined."""
    return [len(entry.parts["lora_down.weight"]) for entry in entries if "lora_down.weight" in entry.parts]


def _joined_loras(entries: Sequence[Entry], layer: Layer, where: str) -> dict[str, Tensor]:
    """Each entry has its own columns of up, which are zero outside of its rows, and its own rows of down."""
    scales = [float(entry.parts.get("alpha", len(entry.parts["lora_down.weight"]))) for entry in entries]
    scales = [alpha / len(entry.parts["lora_down.weight"]) for alpha, entry in zip(scales, entries)]
    common = scales[0] if len(set(scales)) == 1 else 1.0
    downs = [entry.parts["lora_down.weight"].float().flatten(1) for entry in entries]
    if any(down.shape[1] != layer.fan_in for down in downs):
        raise TrainError(f"{where}: found down {tuple(downs[0].shape)}, expected (rank, {layer.fan_in})")
    every = [row for entry in entries for row in _rows(entry, layer)]
    shared = len(every) == len(set(every)) and all(torch.equal(down, downs[0]) for down in downs[1:])
    up = torch.zeros(layer.outputs, len(downs[0]) if shared else sum(len(down) for down in downs))
    at = 0
    for entry, down, scale in zip(entries, downs, scales):
        rows, columns = _rows(entry, layer), slice(0, len(down)) if shared else slice(at, at := at + len(down))
        own = entry.parts["lora_up.weight"].float()
        if own.ndim < 2 or own.flatten(1).shape != (len(rows), len(down)):
            raise TrainError(
                f"{where}: found up {tuple(own.shape)} in {entry.prefix}, expected ({len(rows)}, {len(down)}): "
                "a LoRA for another model"
            )
        up[rows, columns] = own.flatten(1) * (scale / common)
    alpha = torch.tensor(common * up.shape[1])
    return {"lora_up.weight": up, "lora_down.weight": downs[0] if shared else torch.cat(downs), "alpha": alpha}


def _scattered(entries: Sequence[Entry], name: str, layer: Layer, where: str) -> Tensor:
    whole = torch.zeros(layer.shape if name == "diff" else (layer.outputs,))
    for entry in entries:
        if name in entry.parts:
            rows = _rows(entry, layer)
            own, expected = entry.parts[name].float(), whole[rows].shape
            if own.numel() != expected.numel():
                raise TrainError(f"{where}: found {name} {tuple(own.shape)}, expected {tuple(expected)}")
            whole[rows] += own.reshape(expected)
    return whole


def _rows(entry: Entry, layer: Layer) -> list[int]:
    return list(range(layer.outputs) if entry.rows is None else entry.rows)


def _scale_all_rows(entries: Sequence[Entry], layer: Layer) -> bool:
    """Whether the entries' DoRAs, along the output axis, cover all rows of the layer."""
    rows = [row for entry in entries if "dora_scale" in entry.parts for row in _rows(entry, layer)]
    scales = [(entry.parts.get("dora_scale", torch.tensor(0.0)), len(_rows(entry, layer))) for entry in entries]
    return set(rows) == set(range(layer.outputs)) and all(
        scale.ndim and scale.shape[0] == scale.numel() == count for scale, count in scales
    )


def _has(entries: Sequence[Entry], name: str) -> bool:
    return any(name in entry.parts for entry in entries)
