"""A toy model with every kind of layer, and adapters on it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from streamcache.lora_train.adapters import AdapterSettings


class Toy(nn.Module):
    """A model with every sort of layer that an adapter knows, and a denoiser's view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.image = nn.Conv2d(4, 12, 3, stride=2, padding=1)
        self.wrapped = nn.Conv2d(12, 12, 3, padding=1, padding_mode="circular", bias=False)
        self.grouped = nn.Conv2d(12, 12, 3, padding="same", groups=3)
        self.line = nn.Conv1d(12, 12, 5, padding=2, dilation=1)
        self.volume = nn.Conv3d(12, 12, (1, 3, 3), padding=(0, 1, 1))
        self.first = nn.Linear(12, 24)
        self.second = nn.Linear(24, 12, bias=False)

    def forward(self, x):
        x = self.grouped(self.wrapped(self.image(x)))
        x = self.volume(x[:, :, None])[:, :, 0]
        x = self.line(x.flatten(2)).transpose(1, 2)
        return self.second(F.gelu(self.first(x)))

    def adaptable(self):
        return dict(self.named_children())

    def groups(self):
        return {"attention": ["first"], "all": list(self.adaptable())}

    def export_names(self, naming):
        prefix = {"comfyui": "diffusion_model.", "kohya": "lora_unet_", "diffusers": "transformer."}[naming]
        return {name: prefix + name for name in self.adaptable()}


X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))

KINDS = pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])

AXES = pytest.mark.parametrize("axis", ["input", "output"])


def settings(**changes):
    return AdapterSettings(**{"rank": 3, "alpha": 2.0, "targets": "all", **changes})


def run(toy, network):
    with network.attached(toy.adaptable()):
        return toy(X)


def stir(network, seed=5):
    """Move every trained parameter away from its start."""
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=made) * 0.2)
    return network


def merged(toy, network):
    """A copy of the model with the adapters in its weights: the definition that the hooks have to equal."""
    model = copy.deepcopy(toy)
    for name, adapter in network.items():
        module = getattr(model, name)
        weight = module.weight.detach().clone()
        if adapter.factors is not None:
            weight += adapter.factors.weight().detach()
        if adapter.diff is not None:
            weight += adapter.diff
        if adapter.magnitude is not None:
            over = [d for d in range(weight.ndim) if d != (1 if adapter.axis == "input" else 0)]
            shape = [-1 if d not in over else 1 for d in range(weight.ndim)]
            weight *= adapter.magnitude.detach().reshape(shape) / weight.square().sum(over, keepdim=True).sqrt()
        module.weight.data = weight
        if adapter.diff_b is not None:
            module.bias.data = module.bias + adapter.diff_b
    return model


class Quantized(nn.Module):
    """A linear layer that keeps bytes and makes its weight only inside of forward."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.step = linear.weight.abs().max() / 127
        self.weight = (linear.weight / self.step).round().to(torch.int8).detach()
        self.bias = linear.bias

    def forward(self, x):
        return F.linear(x, self.weight * self.step, self.bias)
