"""The rule by which each layer of a new LoRA gets its rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import TrainError
from .change import Change, Product

# Singular values (the largest first) and a target → the smallest rank that reaches it. The sv_ rules are those of
# kohya's resize_lora: share of the sum, share of the norm, ratio of the largest to the smallest value.
RULES: dict[str, Callable[[Tensor, float], int]] = {
    "energy": lambda values, target: _reach(values.square(), target),
    "sv_fro": lambda values, target: _reach(values.square(), target**2),
    "sv_cumulative": lambda values, target: _reach(values, target),
    "sv_ratio": lambda values, target: int((values > values[0] / target).sum()),
}


@dataclass(frozen=True)
class RankRule:
    """At most `rank` (`conv_rank` for convolutions larger than 1×1); with `rule`, as few as reach its target."""

    rank: int
    conv_rank: int | None = None
    rule: str = ""  # one of RULES
    target: float = 0.0

    def __post_init__(self) -> None:
        for name, rank in (("rank", self.rank), ("conv_rank", self.conv_rank)):
            if rank is not None and rank < 1:
                raise TrainError(f"{name}: found {rank}, expected 1 or more")
        if self.rule and self.rule not in RULES:
            raise TrainError(f'found the rule "{self.rule}", expected one of {", ".join(RULES)}')
        if self.rule == "sv_ratio" and not self.target >= 1:
            raise TrainError(f"sv_ratio: found {self.target:g}, expected 1 or more")
        if self.rule not in ("", "sv_ratio") and not 0 < self.target <= 1:
            raise TrainError(f"{self.rule}: found {self.target:g}, expected a share above 0 and up to 1")

    def __str__(self) -> str:
        conv = f", {self.conv_rank} for convolutions" if self.conv_rank is not None else ""
        return f"{self.rule} {self.target:g}, at most {self.rank}{conv}" if self.rule else f"{self.rank}{conv}"

    def reduce(self, change: Change) -> tuple[Product, float]:
        """The change at the chosen rank, and the share of its squared norm that is kept."""
        most = self._most(change)
        if isinstance(change, Product) and change.rank <= most and not self.rule:
            return change, 1.0
        spectrum = change.spectrum()
        values = spectrum.values
        if not values.isfinite().all():
            raise TrainError("its singular values are nan or infinite; the weights are too large")
        wanted = RULES[self.rule](values, self.target) if self.rule and values[0] > 0 else most
        rank = max(1, min(wanted, most, int((values > 0).sum())))
        return spectrum.cut(rank), spectrum.kept(rank)

    def _most(self, change: Change) -> int:
        larger = len(change.shape) > 2 and any(size > 1 for size in change.shape[2:])
        return self.conv_rank if self.conv_rank is not None and larger else self.rank


def _reach(shares: Tensor, target: float) -> int:
    shares = shares.double()
    return int(torch.searchsorted(shares.cumsum(0) / shares.sum(), target * (1 - 1e-12))) + 1
