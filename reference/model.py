"""The reference model: a small diffusion transformer with text cross-attention, for flow, eps or v prediction."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from ..dataset_cache import replace_file
from ..lora_train import (
    DiffusionSchedule,
    FlowSchedule,
    Prediction,
    TrainError,
    per_row,
    scaled_linear_alphas,
)
from .encoders import CHANNELS, TEXT_WIDTH

LEAST_NOISE = 0.05  # the native prediction divides by the share of noise


@dataclass(frozen=True)
class ModelSize:
    """Sizes of the model. The defaults are those of the demo."""

    width: int = 96
    depth: int = 3
    heads: int = 4
    channels: int = CHANNELS
    text_width: int = TEXT_WIDTH
    prediction: Prediction = "flow"


class Attention(nn.Module):
    """Self-attention, or attention to a context if one is given."""

    def __init__(self, width: int, heads: int, context: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(context or width, width, bias=False)
        self.to_v = nn.Linear(context or width, width, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """A 3×3 depthwise convolution, which keeps edges connected, then two linear layers with a GELU between."""

    def __init__(self, width: int, times: int = 4) -> None:
        super().__init__()
        self.near = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.up = nn.Linear(width, width * times)
        self.down = nn.Linear(width * times, width)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        x = x + self.near(x.transpose(1, 2).unflatten(2, size)).flatten(2).transpose(1, 2)
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Self-attention, attention to the text, and an MLP; the first and last modulated by time and pooled text."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.attn = Attention(size.width, size.heads)
        self.cross = Attention(size.width, size.heads, size.text_width)
        self.mlp = Mlp(size.width)
        self.modulation = nn.Linear(size.width, 6 * size.width)

    def forward(self, x: Tensor, signal: Tensor, tokens: Tensor, mask: Tensor, size: tuple[int, int]) -> Tensor:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(signal)[:, None].chunk(6, -1)
        x = x + gate_a * self.attn(_norm(x) * (1 + scale_a) + shift_a)
        x = x + self.cross(_norm(x), tokens, mask)
        return x + gate_m * self.mlp(_norm(x) * (1 + scale_m) + shift_m, size)


class ReferenceModel(nn.Module):
    """x_t [B, C, h, w], t [B], tokens [B, T, 64], pooled [B, 64] → the native prediction [B, C, h, w]."""

    def __init__(self, size: ModelSize | None = None, seed: int = 0) -> None:
        super().__init__()
        self.size = size = size or ModelSize()
        self.schedule = schedule_of(size.prediction)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._make(size)

    def _make(self, size: ModelSize) -> None:
        self.image_in = nn.Linear(size.channels, size.width)
        self.time_in = nn.Sequential(nn.Linear(size.width, size.width), nn.SiLU(), nn.Linear(size.width, size.width))
        self.pooled_in = nn.Linear(size.text_width, size.width)
        blocks = [Block(size) for _ in range(size.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.modulation_out = nn.Linear(size.width, 2 * size.width)
        self.image_out = nn.Linear(size.width, size.channels)
        # Zero-initialized layers: every block starts as the identity, which speeds up learning.
        for block in blocks:
            _zero(block.modulation, block.cross.to_out)
        _zero(self.modulation_out, self.image_out)

    def forward(self, x_t: Tensor, t: Tensor, tokens: Tensor, pooled: Tensor) -> Tensor:
        size = height, width = x_t.shape[-2], x_t.shape[-1]
        x = self.image_in(x_t.flatten(2).transpose(1, 2)) + grid(height, width, self.size.width, x_t.device).to(x_t)
        signal = F.silu(self.time_in(waves(t * 8, self.size.width).to(x_t.dtype)) + self.pooled_in(pooled))
        mask = tokens.abs().amax(-1)[:, None, None] > 0  # padding is rows of zeros, so its length does not matter
        for block in self.blocks:
            x = block(x, signal, tokens, mask, size)
        shift, scale = self.modulation_out(signal)[:, None].chunk(2, -1)
        clean = self.image_out(_norm(x) * (1 + scale) + shift)
        return self._native(clean.transpose(1, 2).unflatten(2, size), x_t, t)

    def _native(self, clean: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        # The clean image is far easier to learn than the noise; the native prediction follows from it.
        if isinstance(self.schedule, FlowSchedule):
            return (x_t - clean) / per_row(t.clamp(min=LEAST_NOISE), x_t)
        alpha = per_row(self.schedule.alpha(t), x_t)
        signal, noise = alpha.sqrt(), (1 - alpha).sqrt().clamp(min=LEAST_NOISE)
        return (x_t - signal * clean if self.size.prediction == "eps" else signal * x_t - clean) / noise


def schedule_of(prediction: Prediction) -> FlowSchedule | DiffusionSchedule:
    """The noise schedule of a prediction type."""
    return FlowSchedule() if prediction == "flow" else DiffusionSchedule(scaled_linear_alphas(), prediction)


def save_model(path: str | Path, model: ReferenceModel) -> None:
    """Write weights and sizes to one safetensors file."""
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    replace_file(Path(path), save(weights, {"streamcache_reference": json.dumps(asdict(model.size))}))


_REMEDY = "`python dev.py demo` writes a reference model to demo/base.safetensors"


def load_model(path: str | Path) -> ReferenceModel:
    """Read a file written by `save_model`."""
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = (file.metadata() or {}).get("streamcache_reference")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise TrainError(f"{path}: no such file; {_REMEDY}") from None
    except (OSError, SafetensorError) as error:
        raise TrainError(f"{path}: cannot be read: {error}") from error
    if facts is None:
        raise TrainError(f"{path}: not a reference model; {_REMEDY}")
    model = ReferenceModel(ModelSize(**json.loads(facts)))
    model.load_state_dict(weights)
    return model


def waves(values: Tensor, width: int) -> Tensor:
    """[...] → [..., width]: sines and cosines of rising frequency."""
    rates = torch.exp(torch.linspace(0, math.log(100), width // 2, device=values.device))
    angles = values.float()[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)


def grid(height: int, width: int, channels: int, device: torch.device | str = "cpu") -> Tensor:
    """[h·w, channels] positions, counted from the middle, so that what is learned holds for every resolution."""
    y = waves((torch.arange(height, device=device) - (height - 1) / 2) / 8, channels // 2)
    x = waves((torch.arange(width, device=device) - (width - 1) / 2) / 8, channels // 2)
    both = torch.cat([y[:, None].expand(-1, width, -1), x[None].expand(height, -1, -1)], -1)
    return both.flatten(0, 1)


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _zero(*layers: nn.Linear) -> None:
    for layer in layers:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
