"""A LoRA in another naming or number type. What it does to a model stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ...errors import TrainError
from ...quantity import plural
from ..adapters import read_lora, restore_network
from ..denoiser import NAMINGS, Denoiser, Naming
from ..export import DTYPES, peft_parts, to_tensors
from .names import respell
from .new_file import MADE_FROM, NewLayer, NewLora, ToolReport, WatchTool, carried_metadata, made_from
from .reader import LoraReader, open_lora

DIFFUSERS: Naming = "diffusers"


def convert_lora(
    source: str | Path,
    out: str | Path,
    naming: Naming | None = None,
    dtype: str | None = None,
    denoiser: Denoiser | None = None,
    overwrite: bool = False,
    watch: WatchTool | None = None,
) -> ToolReport:
    """Write the LoRA in another naming, number type, or both; None keeps it.

    Without the model (`denoiser`) only names that follow from the file's own names can be written.
    """
    if naming is not None and naming not in NAMINGS:
        raise TrainError(f'naming: found "{naming}", expected one of {", ".join(NAMINGS)}')
    if naming is None and dtype is None:
        raise TrainError("nothing to convert: give a naming, a dtype or both")
    new = NewLora(out, dtype, overwrite)
    with open_lora(source) as lora:
        if naming is None:
            _copy(lora, new)
        elif denoiser is None:
            _rename(lora, new, naming, watch)
        else:
            _translate(lora, new, naming, denoiser)
        metadata = carried_metadata([lora], one_training=True, peft=naming is None)
        if naming == DIFFUSERS:  # alphas are in the factors
            metadata = {key: value for key, value in metadata.items() if key != "ss_network_alpha"}
        provenance = made_from("convert", [lora], naming=naming, dtype=dtype)
    return new.write({**metadata, MADE_FROM: provenance})


def _copy(lora: LoraReader, new: NewLora) -> None:
    for key in lora.keys:
        new.add(key, lora.tensor(key))
    new.layers += [NewLayer(prefix, lora.kind(prefix), (), 0) for prefix in (*lora.layers, *lora.untrainable)]


def _rename(lora: LoraReader, new: NewLora, naming: Naming, watch: WatchTool | None) -> None:
    if lora.untrainable:
        prefix, kind = next(iter(lora.untrainable.items()))
        raise TrainError(f"{lora.where}: {prefix} is a {kind}, which has no other naming; only the dtype can change")
    names = {prefix: respell(prefix, naming, lora.metadata) for prefix in lora.layers}
    unnamed = [prefix for prefix, name in names.items() if name is None]
    if unnamed:
        raise TrainError(
            f"{lora.where}: the name of {unnamed[0]} in the naming {naming} depends on the model "
            f"({len(unnamed)} of {len(names)} layers, which are in the naming {lora.naming}); name the model: "
            "--comfyui FOLDER --model NAME"
        )
    for done, (prefix, name) in enumerate(names.items()):
        assert name is not None
        _add(new, name, _with_alpha(lora.parts(prefix)), naming, lora.dtype_of(prefix))
        new.layers.append(NewLayer(name, lora.kind(prefix), (), 0))
        if watch is not None:
            watch(done + 1, len(names))
    for key in lora.unknown:
        new.add(key, lora.tensor(key))


def _add(new: NewLora, name: str, parts: Mapping[str, Tensor], naming: Naming, dtype: torch.dtype) -> None:
    if naming == DIFFUSERS:
        parts = peft_parts({part: tensor.float() for part, tensor in parts.items()}, name)
    for part, tensor in parts.items():
        key = f"{name}.{part}"
        if key in new.tensors:
            raise TrainError(f"{key}: two layers of the file have this name in the naming {naming}; expected one")
        new.add(key, tensor, dtype)


def _with_alpha(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Readers take a LoRA without alpha as one of alpha = rank; written, no reader has to guess."""
    down = parts.get("lora_down.weight")
    return parts if down is None or "alpha" in parts else {**parts, "alpha": torch.tensor(float(len(down)))}


def _translate(lora: LoraReader, new: NewLora, naming: Naming, denoiser: Denoiser) -> None:
    network = restore_network(denoiser, read_lora(lora.path))
    dtypes = {lora.dtype_of(prefix) for prefix in lora.layers}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    tensors = to_tensors(network, denoiser, naming, DTYPES["fp32"])
    for key, tensor in tensors.items():
        new.add(key, tensor, dtype)
    new.layers += [NewLayer(name, adapter.factors.label if adapter.factors else "full", (), 0)
                   for name, adapter in network.items()]  # fmt: skip
    if network.carried:
        first, count = next(iter(network.carried)), plural(len(network.carried), "tensor")
        new.notes.append(f"Copied unchanged, of no layer of this model: {count} ({first}, …)")
