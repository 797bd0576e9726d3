"""A LoRA file, read one layer at a time: the header first, tensors when they are asked for. Nothing is unpickled."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import TrainError
from ..adapters import KINDS, PEFT_KEY, SortedKeys, read_peft_config, sort_keys, split_lora
from .change import Change, change_of
from .names import naming_of

_CHUNK = 1 << 20
# Torch cannot represent each tensor that safetensors accepts.
_UNREADABLE = (OSError, SafetensorError, ValueError, RuntimeError, AttributeError, TypeError)
# Kinds that change a weight by a matrix that does not depend on the weight.
ADDED = ("LoRA", "LoHa", "LoKr", "full")
WITHOUT_WEIGHT = ("bias", "norm")  # changes of values that no adapter kind has: they are added as they are


class LoraReader:
    """An open LoRA file: prefix → part → key in `layers`, and the layers that no kind here can read in `untrainable`.

    Tensors are views of the file; they are not used after it is closed.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.where, self._file = path, str(path), file
        beside = read_peft_config(path)
        self.metadata: dict[str, str] = ({PEFT_KEY: beside} if beside else {}) | dict(file.metadata() or {})
        self.keys: list[str] = list(file.keys())
        found: SortedKeys = sort_keys(self.keys, self.where)
        self.layers, self.unknown = found.modules, found.unknown
        self.untrainable = {prefix: kind for prefix, (kind, _) in found.untrainable.items()}
        if not self.layers and not self.untrainable:
            first = f'its first key is "{self.keys[0]}"' if self.keys else "it is empty"
            kinds = ", ".join(kind.label for kind in KINDS.values())
            raise TrainError(f"{path}: not a LoRA file: {first}; expected the keys of one of {kinds}")

    @property
    def naming(self) -> str:
        return naming_of([*self.layers, *self.untrainable])

    @property
    def has_peft_keys(self) -> bool:
        """Whether factors are named lora_A and lora_B, as in PEFT, which has no alpha."""
        return any(".lora_A" in key for key in self.keys)

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(key).get_shape())

    def dtype(self, key: str) -> str:
        """As safetensors names it: F32, BF16, …"""
        return str(self._file.get_slice(key).get_dtype())

    def kind(self, prefix: str) -> str:
        """What a layer is: LoRA, LoHa, LoKr, OFT, BOFT, GLoRA … ; DoRA if it is a LoRA with magnitudes."""
        if prefix in self.untrainable:
            return self.untrainable[prefix]
        parts = self.layers[prefix]
        kind = next((kind.label for kind in KINDS.values() if any(part in parts for part in kind.parts)), "")
        if kind == "OFT" and "oft_blocks" in parts and len(self.shape(parts["oft_blocks"])) == 4:
            kind = "BOFT"
        if "dora_scale" in parts:
            return "DoRA" if kind in ("LoRA", "") else f"{kind} with DoRA"
        if not kind and "diff" in parts:
            return "full" if len(self.shape(parts["diff"])) > 1 else "norm"
        return kind or "bias"

    def refuse_other_kinds(self, tool: str) -> None:
        """Refuse layers whose change depends on the base model's weights, by name."""
        for prefix in (*self.layers, *self.untrainable):
            kind = self.kind(prefix)
            if kind not in (*ADDED, *WITHOUT_WEIGHT):
                raise TrainError(
                    f"{self.where}: {prefix} is a {kind}, whose change depends on the base model's weights; "
                    f"{tool} takes {', '.join(ADDED)} only"
                )

    def tensor(self, key: str) -> Tensor:
        """A tensor without nan or infinite values."""
        try:
            tensor = self._file.get_tensor(key)
        except _UNREADABLE as error:
            raise TrainError(f"{self.where}: {key} cannot be read: {error}") from error
        if tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise TrainError(f"{self.where}: {key} has values that are nan or infinite; use another file")
        return tensor

    def parts(self, prefix: str) -> dict[str, Tensor]:
        """A layer's tensors by part, with the alpha from PEFT's configuration."""
        tensors = {key: self.tensor(key) for key in self.layers[prefix].values()}
        return split_lora(tensors, self.metadata, self.where).modules[prefix]

    def change(self, prefix: str) -> Change | None:
        """The change of the layer's weight; None if it changes only its bias or a norm."""
        return change_of(self.parts(prefix), f"{self.where}: {prefix}")

    def dtype_of(self, prefix: str) -> torch.dtype:
        """The type that a new file gives this layer: its own; float32 for types that readers do not expect."""
        keys = [key for part, key in self.layers[prefix].items() if part != "alpha"]
        found = {self.dtype(key) for key in keys}
        return (
            {"BF16": torch.bfloat16, "F16": torch.float16}.get(found.pop(), torch.float32)
            if len(found) == 1
            else (torch.float32)
        )

    def hash(self) -> str:
        """The hash of the tensors' bytes, as kohya's scripts compute it (`sshs_model_hash`)."""
        return tensor_hash(self.path)


@contextmanager
def open_lora(path: str | Path) -> Iterator[LoraReader]:
    path = Path(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block
            raise OSError("not a file")
        file = safe_open(str(path), framework="pt")
    except _UNREADABLE as error:
        raise TrainError(f"{path}: cannot be read as a safetensors LoRA file: {error}") from error
    with file as opened:
        yield LoraReader(path, opened)


def tensor_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
