"""Factors: what a kind of adapter trains on one layer. A new kind is one class of this protocol, named in `KINDS`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from .dora import Axis
from .layer import Layer


@dataclass(frozen=True)
class AdapterSettings:
    """The kind of adapter and the modules that get one. Alpha None means alpha = rank, a scale of 1.

    Values are checked where they are declared, in `TrainConfig`.
    """

    kind: str = "lora"
    rank: int = 16
    alpha: float | None = None
    rank_stabilised: bool = False
    dropout: float = 0.0
    dora: bool = False
    dora_axis: Axis = "input"
    lokr_factor: int | None = None
    targets: str = "attention"
    group_rates: Mapping[str, float] = field(default_factory=dict)  # pattern → learning rate; 0: not trained
    group_ranks: Mapping[str, float] = field(default_factory=dict)  # pattern → rank
    group_alphas: Mapping[str, float] = field(default_factory=dict)  # pattern → alpha
    seed: int = 0

    def alpha_at(self, rank: int) -> float:
        """The alpha that gives a layer of this rank the same scale as the others, rounded as a file stores it."""
        alpha = self.rank if self.alpha is None else self.alpha
        scale = alpha / (self.rank**0.5 if self.rank_stabilised else self.rank)
        return float(torch.tensor(scale * rank))


class Factors(Protocol):
    """The trained tensors of one layer: an `nn.Module` that follows from settings or from the parts of a file."""

    kind: ClassVar[str]
    label: ClassVar[str]  # as people write it
    parts: ClassVar[tuple[str, ...]]  # names of its tensors in a LoRA file, after the module's prefix
    network_module: ClassVar[str]  # kohya's name for the trainer of such files (`ss_network_module`)
    # False: called with the layer's input, it returns what is added to the output.
    # True: called with the layer's output without its bias, it returns the new output. No DoRA, no dropout.
    applies_to_output: ClassVar[bool]
    limits_rank: ClassVar[bool]  # whether the rank is limited to the layer's full rank

    alpha: float

    @property
    def rank(self) -> int: ...

    @classmethod
    def create(cls, layer: Layer, rank: int, settings: AdapterSettings, generator: torch.Generator) -> Factors:
        """Factors that leave the layer's output unchanged until they are trained."""
        ...

    @classmethod
    def from_parts(cls, layer: Layer, parts: dict[str, Tensor], alpha: float | None, where: str) -> Factors:
        """Factors from a file's tensors; a shape that does not fit raises a TrainError that starts with `where`."""
        ...

    @classmethod
    def missing_parts(cls, parts: Collection[str]) -> tuple[str, ...]:
        """Names of the tensors without which the others are useless."""
        ...

    def has_rank(self, rank: int) -> bool:
        """Whether this setting of the rank gives factors of this size on this layer."""
        ...

    def shows_rank(self, rank: int) -> bool:
        """Whether this layer has the size for this rank. Small layers look alike under different settings."""
        ...

    def __call__(self, x: Tensor) -> Any: ...

    def weight(self) -> Tensor:
        """The change of weight [outputs, inputs, *kernel], for DoRA. Not called if `applies_to_output`."""
        ...

    def to_parts(self) -> dict[str, Tensor]:
        """The tensors as a file names them, without alpha."""
        ...
