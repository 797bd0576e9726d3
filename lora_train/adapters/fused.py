"""Joining the entries of a file that change parts of one layer: `to_q`, `to_k`, `to_v` for a fused `qkv`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import TrainError
from .layer import Layer
from .lora_file import Entry

_JOINED = {"lora_up.weight", "lora_down.weight", "alpha", "diff", "diff_b"}


def join_entries(entries: Sequence[Entry], layer: Layer, where: str) -> dict[str, Tensor]:
    """The parts of the whole layer, with the same change of its weight. The rank is the sum of the entries' ranks."""
    if len(entries) == 1 and entries[0].rows is None:
        return entries[0].parts
    names = ", ".join(entry.prefix for entry in entries)
    for entry in entries:
        odd = sorted(entry.parts.keys() - _JOINED)
        if odd:
            raise TrainError(
                f"{where}: one layer in this model, split in the file ({names}); {odd[0]} cannot be joined, only LoRAs "
                "without DoRA can"
            )
    parts = {name: _scattered(entries, name, layer, where) for name in ("diff", "diff_b") if _has(entries, name)}
    loras = [entry for entry in entries if "lora_down.weight" in entry.parts]
    return parts if not loras else parts | _joined_loras(loras, layer, where)


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
    up = torch.zeros(layer.outputs, sum(len(down) for down in downs))
    at = 0
    for entry, down, scale in zip(entries, downs, scales):
        rows, columns = _rows(entry, layer), slice(at, at := at + len(down))
        own = entry.parts["lora_up.weight"].float()
        if own.ndim < 2 or own.flatten(1).shape != (len(rows), len(down)):
            raise TrainError(
                f"{where}: found up {tuple(own.shape)} in {entry.prefix}, expected ({len(rows)}, {len(down)}): "
                "a LoRA for another model"
            )
        up[rows, columns] = own.flatten(1) * (scale / common)
    alpha = torch.tensor(common * up.shape[1])
    return {"lora_up.weight": up, "lora_down.weight": torch.cat(downs), "alpha": alpha}


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


def _has(entries: Sequence[Entry], name: str) -> bool:
    return any(name in entry.parts for entry in entries)
