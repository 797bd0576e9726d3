"""LoRA files in every common key naming: their tensors, sorted by module and part."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import TrainError
from ..denoiser import LayerRows
from .adapter import KINDS
from .lora import Lora
from .peft_config import PEFT_KEY, peft_alpha, read_peft_config

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

# Adapters that ComfyUI or PEFT can apply, but nothing here can train.
UNTRAINABLE = {
    "GLoRA": re.compile(r"(.+)\.[ab][12]\.weight"),
    "BOFT": re.compile(r"(.+)\.boft_[RPs](?:\..+)?"),
    "(IA)³": re.compile(r"(.+)\.(?:on_input|ia3_l(?:\..+)?)"),
    "VeRA": re.compile(r"(.+)\.vera_lambda_[bd](?:\..+)?"),
    "LoRA that replaces or enlarges weights": re.compile(r"(.+)\.(?:set_weight|reshape_weight)"),
}

# Prefixes that trainers put before the model's own names.
WRAPPINGS = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer.", "unet.", "model.")
FLAT_WRAPPINGS = ("lora_unet_", "lora_transformer_", "lycoris_")


@dataclass(frozen=True)
class SortedKeys:
    """The keys of a file: prefix → part → key; prefix → kind and key of what cannot be trained; keys of no adapter."""

    modules: dict[str, dict[str, str]]
    untrainable: dict[str, tuple[str, str]]
    unknown: list[str]


@dataclass(frozen=True)
class Entry:
    """The parts of a file for a layer, or for some rows of it: files may split what a model has fused."""

    prefix: str
    parts: dict[str, Tensor]
    rows: tuple[int, ...] | None = None  # the layer's rows that the parts' rows change; None: all


@dataclass(frozen=True)
class LoraFile:
    """A file's tensors: the parts of each module under the file's own prefix, and keys of no known ending."""

    where: str
    modules: dict[str, dict[str, Tensor]]
    metadata: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, Tensor] = field(default_factory=dict)

    def resolve(
        self, namings: Iterable[Mapping[str, str]], other_names: Mapping[str, LayerRows] | None = None
    ) -> tuple[dict[str, list[Entry]], dict[str, Tensor]]:
        """Entries by the model's module names, and the tensors (under their own keys) that no module owns."""
        known = _known(namings, other_names or {})
        matched: dict[str, list[Entry]] = {}
        left = dict(self.unknown)
        for prefix, parts in self.modules.items():
            place = next((known[spelling] for spelling in _spellings(prefix) if spelling in known), None)
            if place is None:
                left |= {f"{prefix}.{part}": tensor for part, tensor in parts.items()}
                continue
            rows = None if place.rows is None else tuple(place.rows)
            entries = matched.setdefault(place.module, [])
            twin = next((entry.prefix for entry in entries if entry.rows == rows), None)
            if twin is not None:
                raise TrainError(f'{self.where}: "{twin}" and "{prefix}" are the same layer; expected it once')
            entries.append(Entry(prefix, parts, rows))
        if not matched:
            raise TrainError(self._foreign(next(iter(known), "nothing")))
        return matched, left

    def _foreign(self, name: str) -> str:
        if not self.modules:
            found = f'its first key is "{next(iter(self.unknown))}"' if self.unknown else "it is empty"
            kinds = ", ".join(kind.label for kind in KINDS.values())
            return f"{self.where}: not a LoRA file: {found}; expected the keys of one of {kinds}"
        return (
            f"{self.where}: a LoRA for another model: this model has none of its {len(self.modules)} modules. "
            f'It has "{next(iter(self.modules))}", the model has "{name}"'
        )


def read_lora(path: str | Path) -> LoraFile:
    """Read a LoRA file into memory."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block
            raise OSError("not a file")
        with safe_open(str(path), framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - safe_open is not iterable
            metadata = dict(file.metadata() or {})
    except (OSError, SafetensorError, ValueError, RuntimeError, AttributeError) as error:
        # The last three: torch cannot represent a tensor that safetensors accepts.
        raise TrainError(f"{path}: cannot be read as a safetensors LoRA file: {error}") from error
    beside = read_peft_config(Path(path))
    return split_lora(tensors, ({PEFT_KEY: beside} if beside else {}) | metadata, str(path))


def split_lora(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, where: str = "LoRA"
) -> LoraFile:
    """Sort a file's tensors by module and part."""
    keys = sort_keys(tensors, where)
    for kind, key in keys.untrainable.values():
        trained = ", ".join(known.label for known in KINDS.values())
        raise TrainError(f'{where}: a {kind} file (it has "{key}"); only {trained} files can be continued')
    modules = {
        prefix: {part: _floating(part, key, tensors[key], where) for part, key in parts.items()}
        for prefix, parts in keys.modules.items()
    }
    unknown = {key: tensors[key] for key in keys.unknown}
    file = LoraFile(where, modules, dict(metadata or {}), unknown)
    for prefix, parts in modules.items():
        _complete(parts, file.metadata, prefix, f"{where}: {prefix}")
    return file


def sort_keys(keys: Iterable[str], where: str) -> SortedKeys:
    """Sort keys by module and part."""
    found = SortedKeys({}, {}, [])
    for key in keys:
        prefix, part = _split(key)
        if not part:
            kind, prefix = _untrainable(key)
            if kind:
                found.untrainable.setdefault(prefix, (kind, key))
            else:
                found.unknown.append(key)
        elif part in found.modules.setdefault(prefix, {}):
            raise TrainError(f"{where}: {prefix}: found two tensors for {part} (one is {key}); expected one adapter")
        else:
            found.modules[prefix][part] = key
    return found


def _split(key: str) -> tuple[str, str]:
    for pattern, part in ENDINGS:
        match = pattern.fullmatch(key)
        if match:
            return match[1], part or match[2]
    return key, ""


def _untrainable(key: str) -> tuple[str, str]:
    for kind, pattern in UNTRAINABLE.items():
        match = pattern.fullmatch(key)
        if match:
            return kind, match[1]
    return "", key


def _floating(part: str, key: str, tensor: Tensor, where: str) -> Tensor:
    if not (tensor.is_floating_point() or (part == "alpha" and not tensor.is_complex())):
        raise TrainError(f"{where}: {key}: found {tensor.dtype}, expected floating-point numbers")
    return tensor


def _complete(parts: dict[str, Tensor], metadata: Mapping[str, str], prefix: str, where: str) -> None:
    """Check that the parts form an adapter; add PEFT's alpha and turn its bias into a change of bias."""
    kinds = [kind for kind in KINDS.values() if any(part in parts for part in kind.parts)]
    if len(kinds) > 1:
        raise TrainError(f"{where}: found parts of {' and '.join(kind.label for kind in kinds)}; expected one kind")
    missing = kinds[0].missing_parts(parts) if kinds else ()
    if "lora_bias" in parts or not (kinds or parts.keys() & {"diff", "diff_b"}):
        missing = Lora.missing_parts(parts)
    if missing:
        kind = kinds[0].label if kinds else "LoRA"
        raise TrainError(f"{where}: incomplete {kind}: {' and '.join(missing)} missing, found only {', '.join(parts)}")
    if "alpha" in parts and (parts["alpha"].numel() != 1 or not math.isfinite(parts["alpha"].float().item())):
        raise TrainError(f"{where}: found an alpha of shape {tuple(parts['alpha'].shape)}, expected one finite number")
    down = parts.get("lora_down.weight")
    if down is None:
        return
    if down.ndim < 2 or not down.shape[0]:
        raise TrainError(f"{where}: found down {tuple(down.shape)}, expected (rank, inputs)")
    alpha = None if "alpha" in parts else peft_alpha(metadata, prefix, down.shape[0], where)
    if alpha is not None:
        parts["alpha"] = torch.tensor(alpha)
    bias = parts.pop("lora_bias", None)
    if bias is not None:
        # PEFT scales the bias of its B together with B.
        parts["diff_b"] = bias.float() * (float(parts.get("alpha", down.shape[0])) / down.shape[0])


def _known(namings: Iterable[Mapping[str, str]], other_names: Mapping[str, LayerRows]) -> dict[str, LayerRows]:
    known: dict[str, LayerRows] = {}
    for naming in namings:
        for name, prefix in naming.items():
            for spelling in (prefix, name, *(wrapping + name.replace(".", "_") for wrapping in FLAT_WRAPPINGS)):
                known.setdefault(spelling, LayerRows(name))
    for prefix, place in other_names.items():
        known.setdefault(prefix, place)
    return known


def _spellings(prefix: str) -> Iterable[str]:
    yield prefix
    for wrapping in WRAPPINGS:
        if prefix.startswith(wrapping):
            yield from _spellings(prefix[len(wrapping) :])
    if ".processor." in prefix:
        yield from _spellings(prefix.replace(".processor.", "."))
