"""The network: all adapters of a run, built for a model's targets, attached to it by hooks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..denoiser import Denoiser
from ..errors import TrainError
from . import dora, targets
from .adapter import KINDS, Adapter, Factors, seeded_generator
from .layer import Layer, layer_of
from .lora_file import LoraFile

log = logging.getLogger(__name__)

NAMINGS = ("comfyui", "kohya", "diffusers")


@dataclass(frozen=True)
class AdapterSettings:
    """What kind of adapter goes where. Alpha None means alpha = rank: a scale of 1."""

    kind: str = "lora"
    rank: int = 16
    alpha: float | None = None
    rank_stabilised: bool = False
    dropout: float = 0.0
    dora: bool = False
    dora_axis: dora.Axis = "input"
    lokr_factor: int | None = None
    targets: str = "attention"
    group_rates: Mapping[str, float] = field(default_factory=dict)  # pattern → learning rate; 0: not trained
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TrainError(f'kind: found "{self.kind}", expected one of {", ".join(KINDS)}')
        if self.dora_axis not in dora.AXES:
            raise TrainError(f'dora_axis: found "{self.dora_axis}", expected one of {", ".join(dora.AXES)}')
        if self.dora and self.kind == "oft":
            raise TrainError("dora: learns lengths beside a change of weight, and OFT only turns it; use one of them")
        if self.dropout and self.kind == "oft":
            raise TrainError(f"dropout: found {self.dropout}, but OFT adds nothing that could be dropped; expected 0")
        if self.rank < 1:
            raise TrainError(f"rank: found {self.rank}, expected at least 1")
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            raise TrainError(f"alpha: found {self.alpha}, expected a finite number above 0")
        if not 0 <= self.dropout < 1:
            raise TrainError(f"dropout: found {self.dropout}, expected 0 <= dropout < 1")
        if self.lokr_factor is not None and self.lokr_factor < 1:
            raise TrainError(f"lokr_factor: found {self.lokr_factor}, expected at least 1")
        for pattern, rate in self.group_rates.items():
            if not (math.isfinite(rate) and rate >= 0):
                raise TrainError(f'group_rates: found {rate} for "{pattern}", expected a finite number of at least 0')

    @property
    def scale(self) -> float:
        alpha = self.rank if self.alpha is None else self.alpha
        return alpha / (self.rank**0.5 if self.rank_stabilised else self.rank)


class Network(nn.Module):
    """Adapters by the name of the module that they hang on. The base model is no part of it."""

    def __init__(self, adapters: Mapping[str, Adapter], rates: Mapping[str, float] | None = None) -> None:
        super().__init__()
        # Module names hold dots, which the keys of a ModuleDict cannot.
        self.adapters = nn.ModuleDict({name.replace(".", "/"): adapter for name, adapter in adapters.items()})
        self.rates = dict(rates or {})
        self.carried: dict[str, Tensor] = {}  # tensors of the file it began from that belong to no module here

    def __len__(self) -> int:
        return len(self.adapters)

    def items(self) -> Iterator[tuple[str, Adapter]]:
        """(module name, adapter) in the model's order."""
        return ((adapter.name, adapter) for adapter in self.adapters.values())

    def begin(self, step: int) -> None:
        """Say which step the next forward belongs to: dropout follows from it."""
        for adapter in self.adapters.values():
            adapter.step = step

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Optimizer groups, one per learning rate; `learning_rate` is for modules that have none of their own."""
        groups: dict[float, list[nn.Parameter]] = {}
        for name, adapter in self.items():
            trained = [parameter for parameter in adapter.parameters() if parameter.requires_grad]
            groups.setdefault(self.rates.get(name, learning_rate), []).extend(trained)
        return [{"params": params, "lr": rate} for rate, params in groups.items() if params]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was trained or carried, as `module.part` in the adapters' own precision. See `build`."""
        return {f"{name}.{part}": value for name, adapter in self.items() for part, value in adapter.to_parts().items()}

    def unused(self) -> list[str]:
        """Modules whose adapter no forward pass has reached: the model does not call them as modules."""
        return [name for name, adapter in self.items() if not adapter.used]

    @contextmanager
    def attached(self, modules: Mapping[str, nn.Module]) -> Iterator[Network]:
        """Hang every adapter on its module for the time of the `with`; whatever happens, no hook stays behind."""
        with ExitStack() as hooks:
            for name, adapter in self.items():
                for handle in _hook(adapter, modules[name]):
                    hooks.callback(handle.remove)
            yield self


def build_network(denoiser: Denoiser, settings: AdapterSettings, existing: LoraFile | None = None) -> Network:
    """Adapters for the settings' targets. A module that `existing` holds continues from there, with its rank and alpha.

    `lora_file.split(network.tensors())` as `existing` gives the same network again, bit for bit.
    """
    modules = denoiser.adaptable()
    rates = targets.rates_of(settings.group_rates, modules, denoiser.groups())
    chosen = [
        name for name in targets.select_modules(settings.targets, modules, denoiser.groups()) if rates.get(name) != 0
    ]
    layers = {name: layer_of(name, modules[name]) for name in chosen}
    _check_rank(layers, settings)
    adapters = {name: _create(name, layers[name], modules[name], settings) for name in chosen}
    carried: dict[str, Tensor] = {}
    if existing is not None:
        parts, carried = existing.resolve(denoiser.export_names(naming) for naming in NAMINGS)
        adapters |= {name: _restore(name, modules[name], parts[name], settings, existing.where) for name in parts}
        _say_carried(carried, existing.where)
    network = Network({name: adapters[name] for name in modules if name in adapters}, rates)
    network.carried = carried
    for name, adapter in network.items():
        adapter.requires_grad_(rates.get(name) != 0)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise TrainError("group_rates: every target has the rate 0 or is fixed; expected at least one module to train")
    return network.to(denoiser.device)


def _create(name: str, layer: Layer, module: nn.Module, settings: AdapterSettings) -> Adapter:
    adapter = Adapter(name, layer, _factors(name, layer, settings), settings.dropout, settings.seed)
    # A grouped convolution's columns belong to several input channels at once: no ratio for the input fits them.
    if settings.dora and layer.groups == 1:
        weight = dora.base_weight(name, module, layer)
        adapter.set_magnitude(dora.norms(weight, settings.dora_axis), settings.dora_axis)
    return adapter


def _factors(name: str, layer: Layer, settings: AdapterSettings) -> Factors:
    # Each module has a generator of its own: adding a target changes no other module's start.
    made = seeded_generator(f"{settings.seed}:{name}")
    rank = settings.rank if settings.kind == "lokr" else min(settings.rank, layer.full_rank)
    alpha = float(torch.tensor(settings.scale * rank))  # as a file's float32 will hold it
    if settings.kind == "lokr":
        return KINDS["lokr"].create(layer, rank, alpha, made, settings.lokr_factor)
    if settings.kind == "oft":
        alpha = settings.alpha or 0.0  # a bound here, and no scale
    return KINDS[settings.kind].create(layer, rank, alpha, made)


def _restore(
    name: str, module: nn.Module, parts: Mapping[str, Tensor], settings: AdapterSettings, file: str
) -> Adapter:
    layer, where = layer_of(name, module), f"{file}: {name}"
    alpha = float(parts["alpha"]) if "alpha" in parts else None
    kind = next((kind for kind in KINDS.values() if any(part in parts for part in kind.parts)), None)
    factors = None if kind is None else kind.from_parts(layer, dict(parts), alpha, where)
    adapter = Adapter(name, layer, factors, settings.dropout, settings.seed)
    if "diff" in parts:
        adapter.diff = _shaped(parts["diff"], layer.shape, f"{where}.diff")
    if "diff_b" in parts:
        adapter.diff_b = _shaped(parts["diff_b"], (layer.outputs,), f"{where}.diff_b")
    if "dora_scale" in parts and kind is KINDS["oft"]:
        raise TrainError(f"{where}: has both OFT blocks and a dora_scale, which no trainer here can go on from")
    if "dora_scale" in parts:
        adapter.set_magnitude(*dora.from_scale(parts["dora_scale"], layer, where))
    return adapter


def _shaped(tensor: Tensor, shape: tuple[int, ...], where: str) -> Tensor:
    if tensor.numel() != math.prod(shape):
        raise TrainError(f"{where}: found {tuple(tensor.shape)}, expected {shape}: a LoRA for another model")
    return tensor.float().reshape(shape).clone()


def _check_rank(layers: Mapping[str, Layer], settings: AdapterSettings) -> None:
    """Layers smaller than the rank get their full rank at the same scale; a rank above every layer is a mistake."""
    if settings.kind == "lokr":
        return
    small = {name: layer.full_rank for name, layer in layers.items() if layer.full_rank < settings.rank}
    if layers and len(small) == len(layers):
        raise TrainError(
            f"rank: found {settings.rank}, larger than every target layer; expected at most {max(small.values())}"
        )
    if small:
        name, limit = min(small.items(), key=lambda item: item[1])
        log.warning(
            "Rank %d is above %d small layers; they get their full rank (%s: %d)",
            settings.rank,
            len(small),
            name,
            limit,
        )


def _say_carried(carried: Mapping[str, Tensor], where: str) -> None:
    if carried:
        log.warning(
            "%s: %d tensors belong to no module that can be adapted here (%s); they are kept in what is saved, unused",
            where, len(carried), next(iter(carried)),
        )  # fmt: skip


def _hook(adapter: Adapter, module: nn.Module) -> tuple[torch.utils.hooks.RemovableHandle, ...]:
    def before(hooked: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (adapter.enter(hooked, given[0]), *given[1:])

    def after(hooked: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
        return adapter.leave(hooked, given[0], out)

    return module.register_forward_pre_hook(before), module.register_forward_hook(after)
