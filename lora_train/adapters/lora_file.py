"""LoRA files in every common key naming: their tensors, sorted by module and part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import TrainError
from .adapter import KINDS

# How a key ends in a file → the part it is. PEFT puts the adapter's own name (`default`) in the middle.
ENDINGS = [
    (re.compile(f"(.+?){pattern}"), part)
    for pattern, part in (
        (r"(?:\.lora_up|\.lora\.up|_lora\.up|\.lora_linear_layer\.up)\.weight", "lora_up.weight"),
        (r"(?:\.lora_down|\.lora\.down|_lora\.down|\.lora_linear_layer\.down)\.weight", "lora_down.weight"),
        (r"\.lora_B(?:\.[^.]+)?\.bias", "lora_bias"),
        (r"\.lora_B(?:\.[^.]+)?(?:\.weight)?", "lora_up.weight"),
        (r"\.lora_A(?:\.[^.]+)?(?:\.weight)?", "lora_down.weight"),
        (r"\.lora_magnitude_vector(?:\.[^.]+)?(?:\.weight)?", "dora_scale"),
        (r"\.dora_scale", "dora_scale"),
        (r"\.alpha", "alpha"),
        (r"\.(?:diff|w_norm)", "diff"),
        (r"\.(?:diff_b|b_norm)", "diff_b"),
        # Parts of every kind under their own names.
        (rf"\.({'|'.join(re.escape(part) for kind in KINDS.values() for part in kind.parts)})", ""),
    )
]

# Prefixes that trainers put before the model's own names.
WRAPPINGS = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer.", "unet.", "model.")
FLAT_WRAPPINGS = ("lora_unet_", "lora_transformer_", "lycoris_")


@dataclass(frozen=True)
class LoraFile:
    """A file's tensors: the parts of each module under the file's own prefix, and keys of no known ending."""

    where: str
    modules: dict[str, dict[str, Tensor]]
    metadata: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, Tensor] = field(default_factory=dict)

    def resolve(self, namings: Iterable[Mapping[str, str]]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
        """Parts by the model's module names, and the tensors (under their own keys) that no module owns."""
        known = _known(namings)
        matched: dict[str, dict[str, Tensor]] = {}
        left = dict(self.unknown)
        for prefix, parts in self.modules.items():
            name = next((known[spelling] for spelling in _spellings(prefix) if spelling in known), None)
            if name is None:
                left |= {f"{prefix}.{part}": tensor for part, tensor in parts.items()}
            else:
                matched.setdefault(name, {}).update(parts)
        if not matched:
            raise TrainError(
                f"{self.where}: a LoRA for another model: this model has none of its {len(self.modules)} modules. "
                f'It has "{next(iter(self.modules), "no LoRA keys")}", the model has "{next(iter(known), "nothing")}"'
            )
        return matched, left


def read_lora(path: str | Path) -> LoraFile:
    """Read a LoRA file into memory."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return split_lora({key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}, str(path))  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise TrainError(f"{path}: cannot be read as a safetensors LoRA file: {error}") from error


def split_lora(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, where: str = "LoRA"
) -> LoraFile:
    """Sort a file's tensors by module and part."""
    modules: dict[str, dict[str, Tensor]] = {}
    unknown: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        found = _part(key)
        if found is None:
            unknown[key] = tensor
        else:
            modules.setdefault(found[0], {})[found[1]] = tensor
    file = LoraFile(where, modules, dict(metadata or {}), unknown)
    for prefix, parts in modules.items():
        _complete(parts, file.metadata, f"{where}: {prefix}")
    return file


def _part(key: str) -> tuple[str, str] | None:
    for pattern, part in ENDINGS:
        match = pattern.fullmatch(key)
        if match:
            return match[1], part or match[2]
    return None


def _complete(parts: dict[str, Tensor], metadata: Mapping[str, str], where: str) -> None:
    if ("lora_up.weight" in parts) != ("lora_down.weight" in parts):
        raise TrainError(f"{where}: found {', '.join(parts)}; expected both up and down")
    if "alpha" not in parts and "lora_down.weight" in parts:
        alpha = _peft_alpha(metadata, parts["lora_down.weight"].shape[0])
        if alpha is not None:
            parts["alpha"] = torch.tensor(alpha)
    bias = parts.pop("lora_bias", None)
    if bias is not None:
        # PEFT scales the bias of its B together with B.
        rank = parts["lora_down.weight"].shape[0]
        parts["diff_b"] = bias * (float(parts.get("alpha", rank)) / rank)


def _peft_alpha(metadata: Mapping[str, str], rank: int) -> float | None:
    """Alpha for a scale of alpha / rank, from the adapter configuration that diffusers writes into the header."""
    try:
        facts = json.loads(metadata.get("lora_adapter_metadata", "{}"))
    except json.JSONDecodeError:
        return None
    alpha = next((value for key, value in facts.items() if key.rpartition(".")[2] == "lora_alpha"), None)
    stabilised = any(value for key, value in facts.items() if key.rpartition(".")[2] == "use_rslora")
    return None if alpha is None else float(alpha) * (rank**0.5 if stabilised else 1)


def _known(namings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    known: dict[str, str] = {}
    for naming in namings:
        for name, prefix in naming.items():
            for spelling in (prefix, name, *(wrapping + name.replace(".", "_") for wrapping in FLAT_WRAPPINGS)):
                known.setdefault(spelling, name)
    return known


def _spellings(prefix: str) -> Iterable[str]:
    yield prefix
    for wrapping in WRAPPINGS:
        if prefix.startswith(wrapping):
            yield from _spellings(prefix[len(wrapping) :])
    if ".processor." in prefix:
        yield from _spellings(prefix.replace(".processor.", "."))
