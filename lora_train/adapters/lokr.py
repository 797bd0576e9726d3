"""LoKr: the change of a weight as the Kronecker product of a small matrix and a larger, low-rank one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import TrainError
from .factors import AdapterSettings
from .layer import Layer
from .lora import uniform
from .recomputed import apply_recomputed

Factors = Mapping[str, Tensor] | nn.ParameterDict


class Lokr(nn.Module):
    """w1 [p, m] ⊗ w2 [q, n, *kernel], outputs = p·q, inputs = m·n; w2 is w2_a · w2_b if the rank is small enough.

    The scale is alpha / rank if a factor is low-rank, and 1 if both are full matrices.
    """

    kind: ClassVar[str] = "lokr"
    label: ClassVar[str] = "LoKr"
    parts: ClassVar[tuple[str, ...]] = (
        "lokr_w1",
        "lokr_w2",
        "lokr_w1_a",
        "lokr_w1_b",
        "lokr_w2_a",
        "lokr_w2_b",
        "lokr_t2",
    )
    network_module: ClassVar[str] = "lycoris.kohya"
    applies_to_output: ClassVar[bool] = False
    limits_rank: ClassVar[bool] = False  # from a certain rank on, w2 is a full matrix

    def __init__(self, layer: Layer, factors: dict[str, Tensor], alpha: float | None) -> None:
        super().__init__()
        self.layer = layer
        self.factors = nn.ParameterDict({name: nn.Parameter(value) for name, value in factors.items()})
        self.alpha = float(self.rank if alpha is None else alpha)

    @classmethod
    def create(cls, layer: Layer, rank: int, settings: AdapterSettings, generator: torch.Generator) -> Lokr:
        factor = settings.lokr_factor
        (p, q), (m, n) = split_size(layer.outputs, factor), split_size(layer.inputs, factor)
        factors = {"lokr_w1": uniform((p, m), m, generator)}
        if 2 * rank < max(q, n):
            columns = layer.fan_in // m
            factors["lokr_w2_a"] = torch.zeros(q, rank)
            factors["lokr_w2_b"] = uniform((rank, columns), columns, generator)
        else:
            factors["lokr_w2"] = torch.zeros(q, n, *layer.kernel)
        return cls(layer, factors, settings.alpha_at(rank))

    @classmethod
    def from_parts(cls, layer: Layer, parts: dict[str, Tensor], alpha: float | None, where: str) -> Lokr:
        # As in ComfyUI, a whole matrix counts and its factors do not.
        unused = tuple(f"{whole}_" for whole in ("lokr_w1", "lokr_w2") if whole in parts)
        unused = (*unused, "lokr_t2") if "lokr_w2" in parts else unused
        names = [name for name in cls.parts if name in parts and not name.startswith(unused)]
        factors = {name: parts[name].float().clone() for name in names}
        sound = all(value.ndim >= 2 and value.numel() for value in factors.values())
        made = cls(layer, factors, alpha) if sound else None
        if made is None or not made._fits():
            found = ", ".join(f"{name} {tuple(value.shape)}" for name, value in factors.items())
            raise TrainError(f"{where}: found a LoKr of {found}, expected {layer.shape}: a LoRA for another model")
        if "lokr_w2" in factors:
            made.factors["lokr_w2"] = nn.Parameter(made._large(made.factors).detach().clone())
        return made

    @classmethod
    def missing_parts(cls, parts: Collection[str]) -> tuple[str, ...]:
        missing: list[str] = []
        for whole in ("lokr_w1", "lokr_w2"):
            pair = [f"{whole}_a", f"{whole}_b"]
            if whole not in parts:
                missing += [name for name in pair if name not in parts] if any(p in parts for p in pair) else [whole]
        return tuple(missing)

    def has_rank(self, rank: int) -> bool:
        return not self._low_rank or self.rank == rank

    def shows_rank(self, rank: int) -> bool:
        return self._low_rank

    @property
    def rank(self) -> int:
        for side in ("lokr_w2", "lokr_w1"):
            if side not in self.factors:
                return self.factors[f"{side}_b"].shape[0]
        return 1

    @property
    def scale(self) -> float:
        return self.alpha / self.rank if self._low_rank else 1.0

    @property
    def _low_rank(self) -> bool:
        return "lokr_w2" not in self.factors or "lokr_w1" not in self.factors

    def forward(self, x: Tensor) -> Tensor:
        if self.layer.dims == 0:
            return self._apply_factors(x)
        return apply_recomputed(self.layer, x, self._multiply, list(self.factors.values()))

    def weight(self) -> Tensor:
        return self._multiply(*self.factors.values())

    def to_parts(self) -> dict[str, Tensor]:
        parts = dict(self.factors.items())
        if "lokr_w2" in parts and self.layer.dims in (1, 3):
            # ComfyUI multiplies matrices and weights of 2-D convolutions right, others only as a matrix.
            parts["lokr_w2"] = parts["lokr_w2"].flatten(1)
        return parts

    def _apply_factors(self, x: Tensor) -> Tensor:
        # (w1 ⊗ w2)·x without computing the product: w2 on the last axis of [m, n], then w1 across m.
        small = _small(self.factors)
        hidden = self.layer.mix(x.reshape(*x.shape[:-1], small.shape[1], -1), self._large(self.factors))
        mixed = self.layer.mix(hidden.transpose(-1, -2), small * self.scale)
        return mixed.transpose(-1, -2).flatten(-2)

    def _multiply(self, *values: Tensor) -> Tensor:
        factors = dict(zip(self.factors, values, strict=True))
        return self.scale * torch.kron(_like(_small(factors), self.layer), self._large(factors))

    def _large(self, factors: Factors) -> Tensor:
        flat = _large_flat(factors).contiguous()  # torch.kron takes no others
        return flat.reshape(flat.shape[0], self.layer.inputs // _small(factors).shape[1], *self.layer.kernel)

    @torch.no_grad()
    def _fits(self) -> bool:
        try:
            small = _small(self.factors)
            even = small.ndim == 2 and self.layer.inputs % small.shape[1] == 0
            return even and small.shape[0] * self._large(self.factors).shape[0] == self.layer.outputs
        except RuntimeError:  # factors that do not fit each other
            return False


def _small(factors: Factors) -> Tensor:
    return factors["lokr_w1"] if "lokr_w1" in factors else factors["lokr_w1_a"] @ factors["lokr_w1_b"]


def _large_flat(factors: Factors) -> Tensor:
    if "lokr_w2" in factors:
        return factors["lokr_w2"]
    a, b = factors["lokr_w2_a"], factors["lokr_w2_b"]
    if "lokr_t2" in factors:
        return torch.einsum("ij...,jr,ip->pr...", factors["lokr_t2"], b, a)
    return a @ b


def _like(small: Tensor, layer: Layer) -> Tensor:
    return small.reshape(*small.shape, *[1] * layer.dims)


def split_size(size: int, factor: int | None = None) -> tuple[int, int]:
    """size = small · large; small is the greatest divisor up to `factor`, or up to the square root if that is None."""
    bound = int(size**0.5) if factor is None else min(factor, int(size**0.5))
    small = next(candidate for candidate in range(max(bound, 1), 0, -1) if size % candidate == 0)
    return small, size // small
