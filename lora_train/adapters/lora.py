"""LoRA: the change of a weight as the product of two thin matrices, up · down."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import TrainError
from .factors import AdapterSettings
from .layer import Layer


class Lora(nn.Module):
    """alpha / rank · up [outputs, rank] · down [rank, inputs, *kernel]; with `mid` (Tucker), `mid` has the kernel."""

    kind: ClassVar[str] = "lora"
    label: ClassVar[str] = "LoRA"
    parts: ClassVar[tuple[str, ...]] = ("lora_up.weight", "lora_down.weight", "lora_mid.weight")
    network_module: ClassVar[str] = "networks.lora"
    applies_to_output: ClassVar[bool] = False
    limits_rank: ClassVar[bool] = True

    def __init__(self, layer: Layer, up: Tensor, down: Tensor, alpha: float, mid: Tensor | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.alpha = float(alpha)  # a plain number, so that no optimizer trains it
        self.up, self.down = nn.Parameter(up), nn.Parameter(down)
        self.mid = None if mid is None else nn.Parameter(mid)

    @classmethod
    def create(cls, layer: Layer, rank: int, settings: AdapterSettings, generator: torch.Generator) -> Lora:
        """Down is random and up is zero: the output starts as the base model's, and up gets the first gradient."""
        down = uniform((rank, layer.inputs, *layer.kernel), layer.fan_in, generator)
        return cls(layer, torch.zeros(layer.outputs, rank), down, settings.alpha_at(rank))

    @classmethod
    def from_parts(cls, layer: Layer, parts: dict[str, Tensor], alpha: float | None, where: str) -> Lora:
        up, down = parts["lora_up.weight"].float(), parts["lora_down.weight"].float()
        mid = parts.get("lora_mid.weight")
        rank, inputs = len(down), layer.inputs if mid is not None else layer.fan_in
        core = (rank, rank, *layer.kernel)
        if (
            up.numel() != layer.outputs * rank
            or down.numel() != rank * inputs
            or (mid is not None and mid.shape != core)
        ):
            raise TrainError(
                f"{where}: found up {tuple(up.shape)} and down {tuple(down.shape)}, expected "
                f"({layer.outputs}, rank) and (rank, {inputs}): a LoRA for another model"
            )
        shape = (rank, layer.inputs) if mid is not None else (rank, layer.inputs, *layer.kernel)
        mid = None if mid is None else mid.float().clone()
        return cls(
            layer, up.reshape(-1, rank).clone(), down.reshape(shape).clone(), rank if alpha is None else alpha, mid
        )

    @classmethod
    def missing_parts(cls, parts: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in ("lora_up.weight", "lora_down.weight") if name not in parts)

    def has_rank(self, rank: int) -> bool:
        return self.rank in (rank, min(rank, self.layer.full_rank))

    def shows_rank(self, rank: int) -> bool:
        return self.layer.full_rank >= rank

    @property
    def rank(self) -> int:
        return self.up.shape[1]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def forward(self, x: Tensor) -> Tensor:
        if self.layer.groups > 1:
            return self.layer.apply(x, self.weight())
        if self.mid is None:
            hidden = self.layer.apply(x, self.down)
        else:
            hidden = self.layer.apply(self.layer.mix(x, self.down), self.mid)
        return self.layer.mix(hidden * self.scale, self.up)

    def weight(self) -> Tensor:
        down = self.down if self.mid is None else torch.einsum("mn...,nj->mj...", self.mid, self.down)
        return (self.scale * self.up @ down.flatten(1)).reshape(self.layer.shape)

    def to_parts(self) -> dict[str, Tensor]:
        ones = [1] * self.layer.dims
        parts = {"lora_up.weight": self.up.reshape(*self.up.shape, *ones), "lora_down.weight": self.down}
        if self.mid is not None:
            parts["lora_down.weight"] = self.down.reshape(*self.down.shape, *ones)
            parts["lora_mid.weight"] = self.mid
        return parts


def uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> Tensor:
    """Uniform, with the variance that torch gives a linear layer of this fan-in."""
    return (torch.rand(shape, generator=generator) * 2 - 1) / fan_in**0.5
