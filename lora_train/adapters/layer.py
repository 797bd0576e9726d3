"""The shape of a module that an adapter is attached to, and how the module applies a weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import TrainError

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Layer:
    """A linear layer (dims 0) or a convolution over 1, 2 or 3 axes."""

    dims: int
    inputs: int  # features, or channels of one group
    outputs: int
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    pad: tuple[int, ...] = ()  # for padding modes that F.conv does not support
    pad_mode: str = "zeros"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.outputs, self.inputs, *self.kernel)

    @property
    def fan_in(self) -> int:
        return self.inputs * math.prod(self.kernel)

    @property
    def full_rank(self) -> int:
        """The highest rank that a matrix of this shape can have."""
        return min(self.fan_in, self.outputs)

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The layer's operation with another weight [any outputs, inputs, *kernel]."""
        x, bias = _as(x, weight), bias if bias is None else _as(bias, weight)
        if self.dims == 0:
            return F.linear(x, weight, bias)
        padding = self.padding
        if self.pad_mode != "zeros":
            x, padding = F.pad(x, self.pad, mode=self.pad_mode), 0
        convolve = CONVOLUTIONS[self.dims]
        return convolve(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def mix(self, x: Tensor, weight: Tensor) -> Tensor:
        """Mix channels only: weight [outputs, inputs] as a linear layer or a convolution of kernel 1."""
        x = _as(x, weight)
        if self.dims == 0:
            return F.linear(x, weight)
        return CONVOLUTIONS[self.dims](x, weight.reshape(*weight.shape, *[1] * self.dims))

    def per_channel(self, values: Tensor) -> Tensor:
        """[channels] → a shape that multiplies the layer's inputs or outputs channel by channel."""
        return values if self.dims == 0 else values.reshape(-1, *[1] * self.dims)


def layer_of(name: str, module: Any) -> Layer:
    """The shape from the module's attributes, which quantized and offloaded modules have too."""
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return Layer(0, int(module.in_features), int(module.out_features))
    kernel = tuple(getattr(module, "kernel_size", ()))
    if not hasattr(module, "in_channels") or getattr(module, "transposed", False) or len(kernel) not in CONVOLUTIONS:
        raise TrainError(f"{name}: found a {type(module).__name__}; adapters need a linear layer or a convolution")
    mode = getattr(module, "padding_mode", "zeros")
    return Layer(
        dims=len(kernel),
        inputs=int(module.in_channels) // int(module.groups),
        outputs=int(module.out_channels),
        kernel=kernel,
        stride=tuple(module.stride),
        padding=module.padding if isinstance(module.padding, str) else tuple(module.padding),
        dilation=tuple(module.dilation),
        groups=int(module.groups),
        pad=tuple(module._reversed_padding_repeated_twice) if mode != "zeros" else (),
        pad_mode=mode,
    )


def _as(x: Tensor, weight: Tensor) -> Tensor:
    # Autocast chooses the dtype of matrix products itself; without it both sides must have the same.
    return x if torch.is_autocast_enabled(x.device.type) else x.to(weight.dtype)
