"""The average of several LoRAs, such as those that one run wrote along the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from ...errors import TrainError
from ..adapters import PEFT_KEY
from .merge import check_weights, combine
from .new_file import MADE_FROM, NewLayer, NewLora, ToolReport, WatchTool, carried_metadata, made_from
from .rank import RankRule
from .reader import LoraReader, open_lora

CHANGE, FACTORS = "change", "factors"
# Equal in files of one run. A file without one of them says nothing by it.
_RUN_KEYS = ("ss_session_id", "ss_training_started_at", "ss_dataset_id", "ss_seed", PEFT_KEY)


def average_loras(
    sources: Sequence[str | Path],
    out: str | Path,
    weights: Sequence[float] | None = None,
    of: str = CHANGE,
    rule: RankRule | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    watch: WatchTool | None = None,
) -> ToolReport:
    """Write the weighted mean of LoRAs; weights are divided by their sum.

    Of the change: what the files do is averaged, whatever their factors; each layer is then cut to `rule`, by default
    to the largest rank that it has in the files. Of the factors: each tensor is averaged, as a moving average of the
    weights does. That is right only for files of one run, whose factors have grown from the same start; it takes every
    kind, also DoRA and OFT.
    """
    weights = check_weights(sources, weights or [1.0] * len(sources))
    if of not in (CHANGE, FACTORS):
        raise TrainError(f'of: found "{of}", expected {CHANGE} or {FACTORS}')
    if min(weights) < 0:
        raise TrainError(f"weights: found {min(weights):g}, expected none below 0 in an average")
    if of == FACTORS and rule is not None:
        raise TrainError("an average of factors keeps their rank; leave the rank out, or average the change")
    shares = [weight / sum(weights) for weight in weights]
    new = NewLora(out, dtype, overwrite)
    if of == CHANGE:
        return combine("average", sources, out, shares, rule, new, largest_rank=rule is None, watch=watch)
    return _average_factors(sources, shares, new, watch)


def decaying_weights(count: int, decay: float) -> list[float]:
    """The weights of a moving average after `count` updates that began with the first file; the last counts most."""
    if not 0 < decay < 1:
        raise TrainError(f"decay: found {decay:g}, expected a number between 0 and 1")
    return [decay ** (count - 1), *((1 - decay) * decay ** (count - 1 - number) for number in range(1, count))]


def _average_factors(
    sources: Sequence[str | Path], shares: Sequence[float], new: NewLora, watch: WatchTool | None
) -> ToolReport:
    with ExitStack() as opened:
        files = [opened.enter_context(open_lora(source)) for source in sources]
        for file in files[1:]:
            _check_same_run(files[0], file)
        first = files[0]
        for done, key in enumerate(first.keys):
            tensors = [file.tensor(key) for file in files]
            if key.endswith(".alpha"):
                new.add(key, tensors[0])
            else:
                total = torch.stack([share * tensor.float() for share, tensor in zip(shares, tensors)]).sum(0)
                new.add(key, total, tensors[0].dtype)
            if watch is not None:
                watch(done + 1, len(first.keys))
        new.layers += [NewLayer(prefix, first.kind(prefix), (), 0) for prefix in (*first.layers, *first.untrainable)]
        # PEFT's configuration still has the alphas: ranks and alphas are those of the files.
        metadata = carried_metadata(files, one_training=False, peft=True)
        provenance = made_from("average", files, shares, of=FACTORS)
    return new.write({**metadata, "modelspec.title": new.path.stem, MADE_FROM: provenance})


def _check_same_run(first: LoraReader, other: LoraReader) -> None:
    """Refuse files whose factors cannot be averaged: of other layers, sizes, alphas, or of another training."""
    theirs = {key: other.shape(key) for key in other.keys}
    ours = {key: first.shape(key) for key in first.keys}
    different = next((key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key)), None)
    if different is not None:
        raise TrainError(
            f"{other.where}: {different} is {_shape(theirs.get(different))}, but {_shape(ours.get(different))} in "
            f"{first.path.name}; factors can be averaged only within one run: average the change"
        )
    for key in _RUN_KEYS:
        ours_says, theirs_says = first.metadata.get(key), other.metadata.get(key)
        if ours_says is not None and theirs_says is not None and ours_says != theirs_says:
            raise TrainError(
                f"{other.where}: is of another training than {first.path.name} ({key} {theirs_says}, not {ours_says}), "
                "so that its factors mean something else; average the change"
            )
    for key in (key for key in first.keys if key.endswith(".alpha")):
        if not first.tensor(key).equal(other.tensor(key)):
            raise TrainError(
                f"{other.where}: {key} is not that of {first.path.name}; factors can be averaged only within one run: "
                "average the change"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else json.dumps(list(shape))
