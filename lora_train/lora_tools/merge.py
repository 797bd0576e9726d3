"""Several LoRAs as one, which changes a model as all of them do together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...errors import TrainError
from ...quantity import plural
from .change import Change, Product, add_up, change_of, concatenate
from .matching import Sources, match_layers
from .new_file import MADE_FROM, NewLayer, NewLora, ToolReport, WatchTool, carried_metadata, made_from
from .rank import RankRule
from .reader import LoraReader, open_lora

_MOST_FILES = 1000
_ROUNDING = 1e-6  # a sum this much smaller than its parts is rounding: they cancel each other out


@dataclass(frozen=True)
class _Found:
    """What the files have for one layer."""

    kinds: list[str]
    changes: list[tuple[float, Change]]
    ranks: list[int]  # of the LoRAs
    rest: dict[str, Tensor]  # the weighted sums of changes of the bias, or of a norm
    dtype: torch.dtype = torch.float32


def merge_loras(
    sources: Sequence[str | Path],
    out: str | Path,
    weights: Sequence[float] | None = None,
    rule: RankRule | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    watch: WatchTool | None = None,
) -> ToolReport:
    """Write the weighted sum of the changes of several LoRAs (each weight 1 by default).

    Without `rule` it is exact: the factors are put next to each other, so that ranks add up. With it, each layer's sum
    is cut to the rank that `rule` chooses.
    """
    weights = check_weights(sources, weights or [1.0] * len(sources))
    return combine("merge", sources, out, weights, rule, NewLora(out, dtype, overwrite), watch=watch)


def combine(
    tool: str,
    sources: Sequence[str | Path],
    out: str | Path,
    weights: Sequence[float],
    rule: RankRule | None,
    new: NewLora,
    largest_rank: bool = False,
    watch: WatchTool | None = None,
) -> ToolReport:
    """The weighted sum. `largest_rank`: each layer gets the largest rank that it has in the files."""
    with ExitStack() as opened:
        files = [opened.enter_context(open_lora(source)) for source in sources]
        for file in files:
            file.refuse_other_kinds(tool)
            if file.unknown:
                raise TrainError(f"{file.where}: {file.unknown[0]} is no part of an adapter; {tool} cannot combine it")
        matched = match_layers(files)
        for done, (prefix, places) in enumerate(matched.items()):
            found = _find(files, places, weights)
            own = RankRule(max(found.ranks)) if largest_rank and found.ranks else rule
            _add_sum(new, prefix, found, own, files[0].has_peft_keys)
            if watch is not None:
                watch(done + 1, len(matched))
        nothing = sum(bool(layer.rank) and not layer.squared for layer in new.layers)
        if nothing:
            new.notes.append(f"The files cancel each other out in {plural(nothing, 'layer')}: nothing is changed there")
        metadata = carried_metadata(files, one_training=False) | new.sizes()
        rank = str(rule) if rule is not None else "the largest of each layer" if largest_rank else "the sum of ranks"
        facts = {"rank": rank, "kept_energy": round(new.kept(), 6)}
        provenance = made_from(tool, files, weights, **facts)
    return new.write({**metadata, "modelspec.title": new.path.stem, MADE_FROM: provenance})


def check_weights(sources: Sequence[str | Path], weights: Sequence[float]) -> list[float]:
    if not 2 <= len(sources) <= _MOST_FILES:
        raise TrainError(f"found {len(sources)} files, expected 2 to {_MOST_FILES}")
    if len(weights) != len(sources):
        raise TrainError(f"weights: found {len(weights)} for {len(sources)} files, expected one for each")
    if not all(math.isfinite(weight) for weight in weights) or not any(weights):
        raise TrainError(f"weights: found {', '.join(map(str, weights))}, expected numbers that are not all 0")
    return [float(weight) for weight in weights]


def _find(files: Sequence[LoraReader], places: Sources, weights: Sequence[float]) -> _Found:
    found, dtypes = _Found([], [], [], {}), set[torch.dtype]()
    for number, prefix in places:
        file = files[number]
        where, parts = f"{file.where}: {prefix}", file.parts(prefix)
        dtypes.add(file.dtype_of(prefix))
        found.kinds.append(file.kind(prefix))
        change = change_of(parts, where)
        if change is not None:
            _check_shape(found.changes, change, where, files[places[0][0]].path.name)
            found.changes.append((weights[number], change))
        if "lora_down.weight" in parts:
            found.ranks.append(len(parts["lora_down.weight"]))
        for part in ("diff", "diff_b"):
            if part in parts and (part == "diff_b" or parts[part].ndim == 1):
                _add_rest(found.rest, part, weights[number] * parts[part].float(), where)
    return replace(found, dtype=dtypes.pop()) if len(dtypes) == 1 else found


def _add_rest(rest: dict[str, Tensor], part: str, values: Tensor, where: str) -> None:
    if part in rest and rest[part].shape != values.shape:
        raise TrainError(
            f"{where}: {part} has the shape {tuple(values.shape)}, and {tuple(rest[part].shape)} in an earlier file; "
            "the LoRAs are for different models"
        )
    rest[part] = rest[part] + values if part in rest else values


def _check_shape(changes: Sequence[tuple[float, Change]], change: Change, where: str, first: str) -> None:
    """Refuse another size of the weight. One file may say the kernel, where another has only the matrix."""
    for _, other in changes:
        ours, theirs = other.shape, change.shape
        if ours[0] != theirs[0] or math.prod(ours[1:]) != math.prod(theirs[1:]):
            raise TrainError(
                f"{where}: changes a weight of {theirs}, which is {ours} in {first}; the LoRAs are for different models"
            )


def _add_sum(new: NewLora, prefix: str, found: _Found, rule: RankRule | None, peft: bool) -> None:
    for part, values in found.rest.items():
        new.add(f"{prefix}.{part}", values, found.dtype)
    kind = " + ".join(dict.fromkeys(found.kinds))
    if not found.changes:
        new.layers.append(NewLayer(prefix, kind, (), 0))
        return
    if rule is None and not all(isinstance(change, Product) and kind == "LoRA" for _, change in found.changes):
        raise TrainError(f"{prefix} is a {kind}, whose exact sum is as large as the model's weight; give a rank")
    # The kernel's shape is that of a file which says it.
    shape = max((change.shape for _, change in found.changes), key=len)
    if rule is None:
        product, kept = concatenate(found.changes), 1.0
        squared = product.norm() ** 2
    else:
        total = add_up(found.changes)
        product, kept = rule.reduce(replace(total, shape=shape))
        squared = total.norm() ** 2
    if squared <= (_ROUNDING * max(abs(weight) * change.norm() for weight, change in found.changes)) ** 2:
        product, kept, squared = Product(product.up[:, :1] * 0, product.down[:1] * 0, shape), 1.0, 0.0
    layer = NewLayer(prefix, kind, tuple(found.ranks), product.rank, kept, squared)
    new.add_product(layer, Product(product.up, product.down, shape), 1.0, found.dtype, peft)
