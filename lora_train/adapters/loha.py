"""LoHa: the change of a weight as the element-wise product of two low-rank matrices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import TrainError
from .factors import AdapterSettings
from .layer import Layer
from .recomputed import apply_recomputed

# Standard deviations of the random factors: their product starts near the size of a LoRA's down.
UP_SPREAD, DOWN_SPREAD = 0.1, 1.0


class Loha(nn.Module):
    """alpha / rank times (w1_a · w1_b) ∘ (w2_a · w2_b), kernels flattened into the columns; w2_a starts at zero."""

    kind: ClassVar[str] = "loha"
    label: ClassVar[str] = "LoHa"
    parts: ClassVar[tuple[str, ...]] = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2")
    network_module: ClassVar[str] = "lycoris.kohya"
    applies_to_output: ClassVar[bool] = False
    limits_rank: ClassVar[bool] = True

    def __init__(self, layer: Layer, factors: dict[str, Tensor], alpha: float) -> None:
        super().__init__()
        self.layer = layer
        self.alpha = float(alpha)
        self.factors = nn.ParameterDict({name: nn.Parameter(value) for name, value in factors.items()})

    @classmethod
    def create(cls, layer: Layer, rank: int, settings: AdapterSettings, generator: torch.Generator) -> Loha:
        def normal(spread: float, *shape: int) -> Tensor:
            return torch.randn(shape, generator=generator) * spread

        factors = {
            "hada_w1_a": normal(UP_SPREAD, layer.outputs, rank),
            "hada_w1_b": normal(DOWN_SPREAD, rank, layer.fan_in),
            "hada_w2_a": torch.zeros(layer.outputs, rank),
            "hada_w2_b": normal(DOWN_SPREAD, rank, layer.fan_in),
        }
        return cls(layer, factors, settings.alpha_at(rank))

    @classmethod
    def from_parts(cls, layer: Layer, parts: dict[str, Tensor], alpha: float | None, where: str) -> Loha:
        factors = {name: parts[name].float().clone() for name in cls.parts if name in parts}
        made = None
        if all(factors[name].ndim == 2 and factors[name].numel() for name in cls.parts[:4]):
            made = cls(layer, factors, factors["hada_w1_b"].shape[0] if alpha is None else alpha)
        if made is None or not made._fits():
            found = ", ".join(f"{name} {tuple(value.shape)}" for name, value in factors.items())
            raise TrainError(f"{where}: found a LoHa of {found}, expected {layer.shape}: a LoRA for another model")
        return made

    @classmethod
    def missing_parts(cls, parts: Collection[str]) -> tuple[str, ...]:
        cores = cls.parts[4:] if any(name in parts for name in cls.parts[4:]) else ()
        return tuple(name for name in (*cls.parts[:4], *cores) if name not in parts)

    def has_rank(self, rank: int) -> bool:
        return self.rank in (rank, min(rank, self.layer.full_rank))

    def shows_rank(self, rank: int) -> bool:
        return self.layer.full_rank >= rank

    @property
    def rank(self) -> int:
        return self.factors["hada_w1_b"].shape[0]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def forward(self, x: Tensor) -> Tensor:
        return apply_recomputed(self.layer, x, self._multiply, list(self.factors.values()))

    def weight(self) -> Tensor:
        return self._multiply(*self.factors.values())

    def to_parts(self) -> dict[str, Tensor]:
        return dict(self.factors.items())

    def _multiply(self, *values: Tensor) -> Tensor:
        factors = dict(zip(self.factors, values, strict=True))
        return self.scale * self._product("1", factors) * self._product("2", factors)

    def _product(self, side: str, factors: Mapping[str, Tensor]) -> Tensor:
        a, b, core = factors[f"hada_w{side}_a"], factors[f"hada_w{side}_b"], factors.get(f"hada_t{side}")
        product = a @ b if core is None else torch.einsum("ij...,jr,ip->pr...", core, b, a)
        return product.reshape(self.layer.shape)

    @torch.no_grad()
    def _fits(self) -> bool:
        try:
            factors = dict(self.factors.items())
            return self._product("1", factors).shape == self._product("2", factors).shape == self.layer.shape
        except RuntimeError:  # factors that do not fit each other
            return False
