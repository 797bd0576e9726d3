"""All adapters of a run: built for a model's targets, attached to the model by hooks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..denoiser import NAMINGS, Denoiser
from ..errors import TrainError
from . import dora, targets
from .adapter import KINDS, Adapter, seeded_generator
from .factors import AdapterSettings
from .layer import Layer, layer_of
from .lora_file import LoraFile

log = logging.getLogger(__name__)


class Network(nn.Module):
    """Adapters by the name of the module that they are attached to. The base model is not part of it."""

    def __init__(self, adapters: Mapping[str, Adapter], rates: Mapping[str, float] | None = None) -> None:
        super().__init__()
        # Module names contain dots, which keys of a ModuleDict must not.
        self.adapters = nn.ModuleDict({name.replace(".", "/"): adapter for name, adapter in adapters.items()})
        self.rates = dict(rates or {})
        self.carried: dict[str, Tensor] = {}  # tensors of the starting file that no module here has

    def __len__(self) -> int:
        return len(self.adapters)

    def items(self) -> Iterator[tuple[str, Adapter]]:
        """(module name, adapter) in the model's order."""
        return ((adapter.name, adapter) for adapter in self._all())

    def begin(self, step: int) -> None:
        """Set the step that the next forward pass belongs to: dropout masks follow from it."""
        for adapter in self._all():
            adapter.step = step

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Optimizer groups, one per learning rate; `learning_rate` is for modules without a rate of their own."""
        groups: dict[float, list[nn.Parameter]] = {}
        for name, adapter in self.items():
            trained = [parameter for parameter in adapter.parameters() if parameter.requires_grad]
            groups.setdefault(self.rates.get(name, learning_rate), []).extend(trained)
        return [{"params": params, "lr": rate} for rate, params in groups.items() if params]

    def tensors(self) -> dict[str, Tensor]:
        """All trained and loaded tensors as `module.part`, in the adapters' own precision; see `build_network`."""
        return {f"{name}.{part}": value for name, adapter in self.items() for part, value in adapter.to_parts().items()}

    @contextmanager
    def attached(self, modules: Mapping[str, nn.Module]) -> Iterator[Network]:
        """Attach every adapter to its module inside the `with`; all hooks are removed after it, also after an error."""
        with ExitStack() as hooks:
            for name, adapter in self.items():
                for handle in _hook(adapter, modules[name]):
                    hooks.callback(handle.remove)
            yield self

    def _all(self) -> Iterator[Adapter]:
        return cast("Iterator[Adapter]", iter(self.adapters.values()))


def build_network(denoiser: Denoiser, settings: AdapterSettings, existing: LoraFile | None = None) -> Network:
    """Adapters for the settings' targets. A module that is in `existing` continues from there, with its rank and alpha.

    `split_lora(network.tensors())` as `existing` gives the same network again, bit for bit.
    """
    kind = KINDS[settings.kind]
    modules = denoiser.adaptable()
    rates = targets.rates_of(settings.group_rates, modules, denoiser.groups())
    chosen = [
        name for name in targets.select_modules(settings.targets, modules, denoiser.groups()) if rates.get(name) != 0
    ]
    layers = {name: layer_of(name, modules[name]) for name in chosen}
    if kind.limits_rank:
        _check_rank(layers, settings.rank)
    adapters = {name: _create(name, layers[name], modules[name], settings) for name in chosen}
    carried: dict[str, Tensor] = {}
    if existing is not None:
        parts, carried = existing.resolve(denoiser.export_names(naming) for naming in NAMINGS)
        adapters |= {name: _restore(name, modules[name], parts[name], settings, existing.where) for name in parts}
        _warn_carried(carried, existing.where)
    network = Network({name: adapters[name] for name in modules if name in adapters}, rates)
    network.carried = carried
    for name, adapter in network.items():
        adapter.requires_grad_(rates.get(name) != 0)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise TrainError("group_rates: every target has the rate 0; expected at least one module to train")
    return network.to(denoiser.device)


def _create(name: str, layer: Layer, module: nn.Module, settings: AdapterSettings) -> Adapter:
    kind = KINDS[settings.kind]
    rank = min(settings.rank, layer.full_rank) if kind.limits_rank else settings.rank
    # Each module has its own generator: adding a target does not change how other modules start.
    factors = kind.create(layer, rank, settings, seeded_generator(f"{settings.seed}:{name}"))
    adapter = Adapter(name, layer, factors, settings.dropout, settings.seed)
    # In a grouped convolution one column of the weight belongs to several input channels: DoRA has no ratio for it.
    if settings.dora and layer.groups == 1:
        weight = dora.base_weight(name, module, layer)
        adapter.set_magnitude(dora.norms(weight, settings.dora_axis), settings.dora_axis)
    return adapter


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
    if "dora_scale" in parts and kind is not None and kind.applies_to_output:
        raise TrainError(f"{where}: found {kind.parts[0]} with a dora_scale; this combination cannot be trained")
    if "dora_scale" in parts:
        adapter.set_magnitude(*dora.from_scale(parts["dora_scale"], layer, where))
    return adapter


def _shaped(tensor: Tensor, shape: tuple[int, ...], where: str) -> Tensor:
    if tensor.numel() != math.prod(shape):
        raise TrainError(f"{where}: found {tuple(tensor.shape)}, expected {shape}: a LoRA for another model")
    return tensor.float().reshape(shape).clone()


def _check_rank(layers: Mapping[str, Layer], rank: int) -> None:
    """Layers smaller than the rank get their full rank at the same scale; a rank above every layer is an error."""
    small = {name: layer.full_rank for name, layer in layers.items() if layer.full_rank < rank}
    if layers and len(small) == len(layers):
        raise TrainError(f"rank: found {rank}, larger than every target layer; expected at most {max(small.values())}")
    if small:
        name, limit = min(small.items(), key=lambda item: item[1])
        log.warning(
            "Rank %d is above the full rank of %d small layers; they get their full rank (%s: %d)",
            rank,
            len(small),
            name,
            limit,
        )


def _warn_carried(carried: Mapping[str, Tensor], where: str) -> None:
    if carried:
        log.warning(
            "%s: %d tensors belong to no module of this model (%s); they are saved again, but have no effect",
            where, len(carried), next(iter(carried)),
        )  # fmt: skip


def _hook(adapter: Adapter, module: nn.Module) -> tuple[torch.utils.hooks.RemovableHandle, ...]:
    def before(hooked: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (adapter.change_input(hooked, given[0]), *given[1:])

    def after(hooked: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
        return adapter.change_output(hooked, given[0], out)

    return module.register_forward_pre_hook(before), module.register_forward_hook(after)
