"""All adapters of a run: built for a model's targets, attached to the model by hooks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...errors import TrainError
from ..denoiser import NAMINGS, Denoiser, OtherNames
from . import dora, targets
from .adapter import KINDS, Adapter, seeded_generator
from .factors import AdapterSettings
from .fused import join_entries, ranks_of
from .layer import Layer, layer_of
from .lora import Lora
from .lora_file import Entry, LoraFile
from .masks import Part
from .oft import Oft

log = logging.getLogger("streamcache")


class Network(nn.Module):
    """Adapters by the name of the module that they are attached to. The base model is not part of it."""

    def __init__(self, adapters: Mapping[str, Adapter], rates: Mapping[str, float] | None = None) -> None:
        super().__init__()
        # Module names contain dots, which keys of a ModuleDict must not.
        self.adapters = nn.ModuleDict({name.replace(".", "/"): adapter for name, adapter in adapters.items()})
        self.rates = dict(rates or {})
        self.carried: dict[str, Tensor] = {}  # tensors of the starting file that no module here has
        self._active = True

    def __len__(self) -> int:
        return len(self.adapters)

    def items(self) -> Iterator[tuple[str, Adapter]]:
        """(module name, adapter) in the model's order."""
        return ((adapter.name, adapter) for adapter in self._all())

    def moved(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Network:
        """Move and cast all floating-point tensors in place. Unlike `to`, it takes tensors without data."""
        for module in self.modules():
            for name, value in module._parameters.items():
                if value is not None:
                    module._parameters[name] = nn.Parameter(value.detach().to(device, dtype), value.requires_grad)
            for name, value in module._buffers.items():
                if value is not None:
                    module._buffers[name] = value.to(device, dtype if value.is_floating_point() else None)
        return self

    def begin(self, step: int, numbers: Tensor | None = None, part: Part | None = None) -> None:
        """Set the step that the next forward pass belongs to, and its random numbers: dropout masks follow from them.

        Without numbers the masks are those of runs that began under rules 1 or 2. `part` says which rows of a larger
        batch come, if it is not a whole one: they get their rows of the masks.
        """
        for adapter in self._all():
            adapter.step, adapter.numbers, adapter.part = step, numbers, part

    def parameter_groups(self, learning_rate: float, lora_plus: float = 1.0) -> list[dict[str, Any]]:
        """Optimizer groups, one per learning rate; `learning_rate` is for modules without a rate of their own.

        LoRA+ multiplies the rate of every `up`, which begins at zero, as in kohya's scripts (`loraplus_lr_ratio`) and
        arXiv 2402.12354. Each group has the names of its parameters: a resumed run may group them differently.
        """
        groups: dict[float, dict[str, nn.Parameter]] = {}
        if lora_plus != 1:
            groups[learning_rate] = {}  # the first group's rate is the one that is reported
        for key, adapter in self.adapters.items():
            rate = self.rates.get(cast("Adapter", adapter).name, learning_rate)
            for part, parameter in adapter.named_parameters():
                if parameter.requires_grad:
                    own = rate * lora_plus if part == "factors.up" else rate
                    groups.setdefault(own, {})[f"adapters.{key}.{part}"] = parameter
        return [
            {"params": list(found.values()), "names": list(found), "lr": rate}
            for rate, found in groups.items()
            if found
        ]

    @torch.no_grad()
    def limit_norms(self, most: float) -> None:
        """Scale down each LoRA whose change of weight has a larger norm: up and down by √(most / norm) each.

        As `scale_weight_norms` of kohya's scripts. Without a branch: the CPU does not wait for a GPU.
        """
        for adapter in self.trained().values():
            if isinstance(adapter.factors, Lora):
                factor = (most / adapter.factors.weight().norm().clamp(min=most)).sqrt()
                adapter.factors.up.mul_(factor)
                adapter.factors.down.mul_(factor)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside the `with`, the model is as without these adapters, although they stay attached."""
        before, self._active = self._active, False
        try:
            yield
        finally:
            self._active = before

    def trained(self) -> dict[str, Adapter]:
        """The adapters that are trained, by module. Others of the starting file stay as they are."""
        return {name: adapter for name, adapter in self.items() if any(p.requires_grad for p in adapter.parameters())}

    def without_gradient(self) -> list[str]:
        """After a backward pass: the modules to train whose adapters got no gradient, at least in part."""
        return [
            name
            for name, adapter in self.trained().items()
            if any(parameter.requires_grad and parameter.grad is None for parameter in adapter.parameters())
        ]

    def forget_calls(self) -> None:
        """Begin to note which modules are called."""
        for adapter in self._all():
            adapter.called = False

    def uncalled(self) -> list[str]:
        """The modules to train that were not called since `forget_calls`."""
        return [name for name, adapter in self.trained().items() if not adapter.called]

    def tensors(self) -> dict[str, Tensor]:
        """All trained and loaded tensors as `module.part`, in the adapters' own precision; see `build_network`."""
        return {f"{name}.{part}": value for name, adapter in self.items() for part, value in adapter.to_parts().items()}

    @contextmanager
    def attached(self, modules: Mapping[str, nn.Module], first: bool = False) -> Iterator[Network]:
        """Attach every adapter to its module inside the `with`; all hooks are removed after it, also after an error.

        With `first`, they apply before those of other networks on the same modules, whenever these were attached.
        """
        with ExitStack() as hooks:
            for name, adapter in self.items():
                for handle in self._hook(adapter, modules[name], first):
                    hooks.callback(handle.remove)
            yield self

    def _hook(self, adapter: Adapter, module: nn.Module, first: bool) -> tuple[torch.utils.hooks.RemovableHandle, ...]:
        def before(hooked: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not self._active:
                return None
            adapter.called = True
            return (adapter.change_input(hooked, given[0]), *given[1:])

        def after(hooked: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
            return adapter.change_output(hooked, given[0], out) if self._active else out

        return (
            module.register_forward_pre_hook(before, prepend=first),
            module.register_forward_hook(after, prepend=first),
        )

    def _all(self) -> Iterator[Adapter]:
        return cast("Iterator[Adapter]", iter(self.adapters.values()))


def build_network(
    denoiser: Denoiser, settings: AdapterSettings, existing: LoraFile | None = None, resumes: bool = False
) -> Network:
    """Adapters for the settings' targets. A module that is in `existing` continues from there, with its alpha.

    A file whose rank is not the settings' rank is refused. With `resumes`, `existing` is the saved state of a run:
    `split_lora(network.tensors())` gives the same network again, bit for bit.
    """
    modules = denoiser.adaptable()
    groups = {**denoiser.groups(), **targets.convolutions(modules)}
    rates = targets.rates_of(settings.group_rates, modules, groups)
    chosen = [name for name in targets.select_modules(settings.targets, modules, groups) if rates.get(name) != 0]
    layers = {name: layer_of(name, modules[name]) for name in chosen}
    own = targets.settings_of(settings, list(modules), groups)
    if KINDS[settings.kind].limits_rank:
        _check_rank(layers, {name: own[name].rank for name in chosen})
    adapters = {name: _create(name, layers[name], modules[name], own[name]) for name in chosen}
    carried: dict[str, Tensor] = {}
    if existing is not None:
        other_names = denoiser.other_names() if isinstance(denoiser, OtherNames) else {}
        entries, carried = existing.resolve((denoiser.export_names(naming) for naming in NAMINGS), other_names)
        restored = {name: _restore(name, modules[name], found, settings, existing) for name, found in entries.items()}
        if not resumes:
            _check_file(entries, restored, settings, own, existing.where)
            restored = {name: _trainable(adapter, adapters.get(name)) for name, adapter in restored.items()}
        adapters |= restored
        _warn_carried(carried, existing.where)
    network = Network({name: adapters[name] for name in modules if name in adapters}, rates)
    network.carried = carried
    for name, adapter in network.items():
        adapter.requires_grad_(rates.get(name) != 0)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise TrainError("group_rates: every target has the rate 0; expected at least one module to train")
    return network.moved(denoiser.device)


def restore_network(denoiser: Denoiser, file: LoraFile) -> Network:
    """The adapters of a file on the CPU, and in `carried` what no layer of this model owns. Nothing is trained."""
    modules = denoiser.adaptable()
    other_names = denoiser.other_names() if isinstance(denoiser, OtherNames) else {}
    entries, left = file.resolve((denoiser.export_names(naming) for naming in NAMINGS), other_names)
    settings = AdapterSettings()
    network = Network({name: _restore(name, modules[name], found, settings, file) for name, found in entries.items()})
    network.carried = left
    return network.requires_grad_(False).eval()


def load_fixed(denoiser: Denoiser, file: LoraFile) -> Network:
    """The adapters of a file on the CPU, to be applied and not trained. A file for another model is refused."""
    network = restore_network(denoiser, file)
    left, network.carried = network.carried, {}
    if left:
        log.warning("%s: %d tensors belong to no layer of this model (%s, …)", file.where, len(left), next(iter(left)))
    scaled = [name for name, adapter in network.items() if adapter.magnitude is not None]
    if scaled:
        raise TrainError(f"{file.where}: {scaled[0]} is a DoRA, which cannot be a training adapter; use a LoRA")
    for name, adapter in network.items():
        if not all(tensor.float().isfinite().all() for tensor in (*adapter.parameters(), *adapter.buffers())):
            raise TrainError(f"{file.where}: {name} has weights that are nan or infinite; use another file")
    return network


def _create(name: str, layer: Layer, module: nn.Module, settings: AdapterSettings) -> Adapter:
    kind = KINDS[settings.kind]
    rank = min(settings.rank, layer.full_rank) if kind.limits_rank else settings.rank
    # Each module has its own generator: adding a target does not change how other modules start.
    factors = kind.create(layer, rank, settings, seeded_generator(f"{settings.seed}:{name}"))
    adapter = Adapter(name, layer, factors, settings.dropout, settings.seed)
    if settings.dora:
        weight = dora.base_weight(name, module, layer)
        adapter.set_magnitude(dora.norms(weight, settings.dora_axis), settings.dora_axis)
    return adapter


def _restore(
    name: str, module: nn.Module, entries: Sequence[Entry], settings: AdapterSettings, file: LoraFile
) -> Adapter:
    layer, where = layer_of(name, module), f"{file.where}: {name}"
    parts = join_entries(entries, layer, where)
    alpha = float(parts["alpha"]) if "alpha" in parts else None
    kind = next((kind for kind in KINDS.values() if any(part in parts for part in kind.parts)), None)
    factors = None if kind is None else kind.from_parts(layer, dict(parts), alpha, where)
    adapter = Adapter(name, layer, factors, settings.dropout, settings.seed)
    if "diff" in parts:
        adapter.diff = _shaped(parts["diff"], layer.shape, f"{where}.diff")
    if "diff_b" in parts:
        adapter.diff_b = _shaped(parts["diff_b"], (layer.outputs,), f"{where}.diff_b")
    if "dora_scale" in parts and (kind is None or kind.applies_to_output):
        found = "no LoRA" if kind is None else kind.label
        raise TrainError(f"{where}: found a dora_scale with {found}; this combination cannot be trained")
    if "dora_scale" in parts:
        adapter.set_magnitude(*dora.from_scale(parts["dora_scale"], layer, where))
    return adapter


def _trainable(restored: Adapter, new: Adapter | None) -> Adapter:
    """The adapter of a file; if the file has only a `diff` or `diff_b` for a target, new factors are added to it."""
    if restored.factors is None and new is not None:
        new.diff, new.diff_b = restored.diff, restored.diff_b
        restored = new
    factors = restored.factors
    if (
        restored.diff is not None
        and factors is not None
        and (restored.magnitude is not None or factors.applies_to_output)
    ):
        kind = "DoRA" if restored.magnitude is not None else factors.label
        raise TrainError(
            f"{restored.name}: the file has a full weight difference (diff) for this layer, and {kind} cannot be "
            "trained on top of it; choose adapter = lora, loha or lokr with dora = false"
        )
    return restored


def _check_file(
    entries: Mapping[str, Sequence[Entry]],
    restored: Mapping[str, Adapter],
    settings: AdapterSettings,
    own: Mapping[str, AdapterSettings],
    where: str,
) -> None:
    """Refuse a file in which no layer has the rank of the settings; log what the settings cannot change."""
    factors = {name: adapter.factors for name, adapter in restored.items() if adapter.factors is not None}
    joined = {name: ranks_of(found) for name, found in entries.items() if len(found) > 1}
    wanted = {name: own[name].rank for name in factors}
    telling = {name: made for name, made in factors.items() if made.shows_rank(wanted[name])} or factors
    fits = [made.has_rank(wanted[name]) or wanted[name] in joined.get(name, ()) for name, made in telling.items()]
    if fits and not any(fits):
        ranks = sorted({rank for name, made in factors.items() for rank in joined.get(name) or [made.rank]})
        found = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks from {ranks[0]} to {ranks[-1]}"
        raise TrainError(f"rank = {settings.rank}: {where} has {found}; set rank = {ranks[-1]} to continue it")
    for (name, made), fit in zip(telling.items(), fits):
        if not fit and wanted[name] != settings.rank:  # a rank of its own
            found = max(joined.get(name) or [made.rank])
            raise TrainError(
                f"group_ranks: {name} gets rank {wanted[name]}, but {where} has rank {found} there; give it that rank "
                "to continue the file"
            )
    other = sorted({made.label for made in factors.values() if made.kind != settings.kind})
    if other:
        log.warning("%s: its layers continue as %s, not as %s", where, ", ".join(other), KINDS[settings.kind].label)
    if settings.dora and any(
        adapter.magnitude is None and adapter.factors is not None for adapter in restored.values()
    ):
        log.warning("%s: its layers without DoRA continue without it", where)
    alphas = {made.alpha for name, made in factors.items() if made.alpha != own[name].alpha_at(made.rank)}
    if settings.alpha is not None and alphas:
        log.warning("%s: alpha = %g is for new layers only; the file has %g", where, settings.alpha, max(alphas))
    if any(isinstance(made, Oft) and made.rescale is not None for made in factors.values()):
        log.warning("%s: OFT with rescale, which LyCORIS applies and ComfyUI's Load LoRA ignores", where)


def _shaped(tensor: Tensor, shape: tuple[int, ...], where: str) -> Tensor:
    if tensor.numel() != math.prod(shape):
        raise TrainError(f"{where}: found {tuple(tensor.shape)}, expected {shape}: a LoRA for another model")
    return tensor.float().reshape(shape).clone()


def _check_rank(layers: Mapping[str, Layer], ranks: Mapping[str, int]) -> None:
    """Layers smaller than their rank get their full rank at the same scale; a rank above every layer is an error."""
    small = {name: layer.full_rank for name, layer in layers.items() if layer.full_rank < ranks[name]}
    rank = max(ranks.values(), default=0)
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
            "%s: %d tensors belong to no module of this model (%s); they are saved again, unchanged",
            where, len(carried), next(iter(carried)),
        )  # fmt: skip
