"""Precision: the dtype that a step computes in, and the scaler that fp16 needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

PRECISIONS: dict[str, torch.dtype | None] = {
    "auto": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}


@dataclass(frozen=True)
class Precision:
    """How a step computes on one device. Weights of the adapter keep their own dtype."""

    name: str
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        dtype = PRECISIONS[self.name]
        assert dtype is not None
        return dtype

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def make_scaler(self) -> torch.amp.GradScaler:
        """fp16 gradients underflow without scaling; elsewhere the scaler passes everything through unchanged."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")


def choose_precision(name: str, device: torch.device) -> Precision:
    """`auto` is bf16 on a GPU that computes it, and fp32 elsewhere."""
    if name == "auto":
        name = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return Precision(name, device)
