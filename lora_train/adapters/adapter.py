"""The adapter of one module: its trained factors, plus what a LoRA file brought for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from . import dora
from .factors import Factors
from .layer import Layer
from .loha import Loha
from .lokr import Lokr
from .lora import Lora
from .masks import LayerMask, Part
from .oft import Oft

KINDS: dict[str, type[Factors]] = {"lora": Lora, "loha": Loha, "lokr": Lokr, "oft": Oft}


class Adapter(nn.Module):
    """Trained factors and DoRA magnitudes, and the fixed `diff` / `diff_b` of a file. Any of them may be missing."""

    diff: Tensor | None
    diff_b: Tensor | None

    def __init__(self, name: str, layer: Layer, factors: Factors | None, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.name, self.layer, self.factors = name, layer, factors
        self.dropout, self.seed, self.step = dropout, seed, -1
        self.mask = LayerMask.of(name)
        self.numbers: Tensor | None = None  # of the batch, for masks; None: a run of older rules
        self.part: Part | None = None  # the rows of it that come; None: all
        self.called = False  # an attribute of its own: a compiled block would check every value that a set has
        self.magnitude: nn.Parameter | None = None
        self.axis: dora.Axis = "input"
        self.register_buffer("diff", None)
        self.register_buffer("diff_b", None)

    def set_magnitude(self, values: Tensor, axis: dora.Axis) -> None:
        """Make it a DoRA."""
        self.magnitude, self.axis = nn.Parameter(values), axis

    def change_input(self, module: nn.Module, x: Tensor) -> Tensor:
        """The input for the base module, given the input x."""
        if self.magnitude is None or self.axis != "input":
            return x
        # In a grouped convolution one column of the weight belongs to one input channel of each group.
        ratios = self._ratios(module, self.magnitude).repeat(self.layer.groups)
        return x * self.layer.per_channel(ratios).to(x.dtype)

    def change_output(self, module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """The adapted output, given the base module's input x and output."""
        if self.factors is not None and self.factors.applies_to_output:
            out = self._without_bias(module, out, self.factors)
        elif self.factors is not None:
            out = out + self.factors(self._dropped(x)).to(out.dtype)
        if self.diff is not None:
            out = out + self.layer.apply(x, self.diff).to(out.dtype)
        if self.magnitude is not None and self.axis == "output":
            ratios = self.layer.per_channel(self._ratios(module, self.magnitude)).to(out.dtype)
            out = self._without_bias(module, out, lambda product: product * ratios)
        if self.diff_b is not None:
            out = out + self.layer.per_channel(self.diff_b).to(out.dtype)
        return out

    def to_parts(self) -> dict[str, Tensor]:
        """The adapter as a LoRA file's tensors, without their prefix, in the adapter's own precision."""
        parts: dict[str, Tensor] = {}
        if self.factors is not None:
            parts |= self.factors.to_parts() | {"alpha": torch.tensor(self.factors.alpha)}
        if self.magnitude is not None:
            parts["dora_scale"] = dora.to_scale(self.magnitude, self.layer, self.axis)
        parts |= {name: value for name, value in self.named_buffers(recurse=False) if value is not None}
        return {name: value.detach() for name, value in parts.items()}

    def _without_bias(self, module: nn.Module, out: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        # The change applies to the weight's product only: subtract the bias, then add it again.
        bias = getattr(module, "bias", None)
        if bias is None:
            return change(out)
        bias = self.layer.per_channel(bias.detach().to(out.device, out.dtype))
        return change(out - bias) + bias

    def _ratios(self, module: nn.Module, magnitude: Tensor) -> Tensor:
        base = dora.base_weight(self.name, module, self.layer)
        change = torch.zeros((), device=magnitude.device) if self.factors is None else self.factors.weight()
        return dora.ratios(magnitude, base, change if self.diff is None else change + self.diff, self.axis)

    def _dropped(self, x: Tensor) -> Tensor:
        if not (self.training and self.dropout):
            return x
        if self.numbers is not None:
            return x * self.mask.keep(self.numbers, x.shape, self.dropout, self.part) / (1 - self.dropout)
        # Before rules 3: a generator per layer.
        assert self.step >= 0, "network.begin(step) comes before a training step with dropout"
        random = seeded_generator(f"{self.seed}:{self.step}:{self.name}", x.device)
        part = self.part or Part.of_all(x.shape[0])
        total, begin = part.place(x.shape[0])
        drawn = torch.rand((total, *x.shape[1:]), generator=random, device=x.device)
        keep = drawn[begin : begin + x.shape[0]] >= self.dropout
        return x * keep / (1 - self.dropout)


def seeded_generator(text: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own whose seed is a hash of this text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
