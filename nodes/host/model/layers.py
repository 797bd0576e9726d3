"""The layers of a host model: which can be adapted, what they are for, and which blocks can be checkpointed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

# Names that the families give to the same things, as whole parts of a module's path. Blocks of one fused layer for
# attention and MLP (Flux: linear1, linear2) count as attention.
ATTENTION = re.compile(
    r"(^|[._])(attn\d*|attention\d*|qkv|[qkv]_proj|to_[qkv]|to_out|linear[12])([._]|$)|_attn(_|\.|$)|(^|\.)attn_"
)
MLP = re.compile(r"(^|[._])(mlp[a-z]*|ff|ffn|feed_forward|fc\d)([._]|$)|_mlp(_|\.|$)")


def adaptable(diffusion_model: nn.Module) -> dict[str, nn.Module]:
    """Every linear and convolution by its path, also those that quantising packs make of their own classes."""
    return {name: module for name, module in diffusion_model.named_modules() if _is_layer(module)}


def groups(diffusion_model: nn.Module) -> dict[str, list[str]]:
    """The presets of targets: attention and MLP inside of the repeated blocks, and everything."""
    names = list(adaptable(diffusion_model))
    inside = _names_inside(diffusion_model, names)
    attention = {name for name in inside if ATTENTION.search(name)}
    both = attention | {name for name in inside if MLP.search(name)}
    presets = {"attention": attention, "attention+mlp": both, "all": set(names)}
    return {preset: [name for name in names if name in chosen] for preset, chosen in presets.items() if chosen}


def blocks(diffusion_model: nn.Module) -> list[nn.Module]:
    """The modules that the model repeats, each of which is called as a whole."""
    found: list[nn.Module] = []
    for _, container in _containers(diffusion_model):
        found += _called_parts(container)
    return found


def _is_layer(module: nn.Module) -> bool:
    if not hasattr(module, "weight_function") or getattr(module, "transposed", False):
        return False
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) or hasattr(module, "in_features")


def _containers(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost lists and sequences of blocks (not of bare layers)."""
    for name, child in module.named_children():
        place = f"{path}.{name}" if path else name
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            if _called_parts(child):
                yield place, child
        else:
            yield from _containers(child, place)


def _called_parts(container: nn.Module) -> list[nn.Module]:
    """A UNet walks through its sequences by itself: there the parts are called, not the sequence."""
    parts: list[nn.Module] = []
    for child in container.children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            parts += _called_parts(child)
        elif not _is_layer(child) and any(_is_layer(inner) for inner in child.modules()):
            parts.append(child)
    return parts


def _names_inside(diffusion_model: nn.Module, names: list[str]) -> list[str]:
    places = tuple(f"{place}." for place, _ in _containers(diffusion_model))
    return [name for name in names if name.startswith(places)]
