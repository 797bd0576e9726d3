"""What a LoRA file contains: kinds, ranks, blocks, norms and metadata, without loading it whole."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import TrainError
from ...quantity import byte_count, plural
from ..export import PARTIAL
from .names import block_of, component_of
from .new_file import MADE_FROM, WatchTool, describe_numbers
from .reader import ADDED, LoraReader, open_lora

_PARTIAL_NAME = re.compile(r".+-step\d{8,}")
_TRIGGERS = ("modelspec.trigger_phrase", "ss_trigger_words", "trigger_words", "trained_words")
_HASHES = ("sshs_model_hash", "modelspec.hash_sha256")
_MOST_LINES, _LONGEST = 12, 200


@dataclass(frozen=True)
class LayerInfo:
    """One layer. The norm is that of the change of its weight; None if it depends on the base model's weights."""

    prefix: str
    kind: str
    part: str  # of the pipeline: model, te1, …
    block: str
    number: int | None
    rank: int | None
    alpha: float | None
    norm: float | None


@dataclass(frozen=True)
class LoraInfo:
    """What a file contains. `problems` are sentences about what is damaged."""

    path: str
    bytes: int
    values: int
    dtypes: dict[str, int]  # tensors by number type
    naming: str
    keys: str  # how factors are named: lora_up / lora_down, or PEFT's lora_A / lora_B
    kinds: dict[str, int]  # layers by kind
    layers: list[LayerInfo]
    unknown: list[str]  # keys of no adapter
    metadata: dict[str, str]
    hashes: dict[str, bool]  # a hash in the metadata → whether it is that of the tensors
    partial: bool
    problems: list[str] = field(default_factory=list)

    @property
    def trigger_words(self) -> list[str]:
        """The first of the metadata's lists of trigger words."""
        text = next((self.metadata[name] for name in _TRIGGERS if self.metadata.get(name)), "")
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):
            listed = text.split(",")
        words = listed if isinstance(listed, list) else [text]
        return [word for each in words if isinstance(each, (str, int)) and (word := str(each).strip())]

    @property
    def made_from(self) -> Any:
        """Where the file comes from, if a tool made it."""
        try:
            return json.loads(self.metadata.get(MADE_FROM, "null"))
        except (ValueError, RecursionError):
            return None

    def groups(self) -> list[dict[str, Any]]:
        """The layers by the list of blocks that they are in, with the norm of all their changes together."""
        grouped: dict[tuple[str, str], list[LayerInfo]] = {}
        for layer in self.layers:
            grouped.setdefault((layer.part, layer.block), []).append(layer)
        return [
            {
                "part": part,
                "group": block,
                "blocks": len({layer.number for layer in layers} - {None}),
                "layers": len(layers),
                "ranks": sorted({layer.rank for layer in layers if layer.rank is not None}),
                "norm": _total(layers),
            }
            for (part, block), layers in grouped.items()
        ]

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        return facts | {
            "groups": self.groups(),
            "ranks": _counts(layer.rank for layer in self.layers),
            "alphas": _counts(layer.alpha for layer in self.layers),
            "trigger_words": self.trigger_words,
            "made_from": self.made_from,
        }

    def lines(self) -> Iterator[str]:
        """The text for people."""
        kinds = ", ".join(f"{plural(count, 'layer')} of {kind}" for kind, count in self.kinds.items())
        dtypes = ", ".join(self.dtypes)
        yield f"{self.path}: {kinds}; {byte_count(self.bytes)}, {dtypes}"
        if self.partial:
            said = self.metadata.get(PARTIAL)
            yield "Partial: saved when a training was interrupted" + (f", {said}" if said else "")
        yield f"Naming: {self.naming}, {self.keys}"
        ranks = [layer.rank for layer in self.layers if layer.rank is not None]
        alphas = [layer.alpha for layer in self.layers if layer.alpha is not None]
        if ranks:
            yield f"Rank: {describe_numbers(ranks)}; alpha: {describe_numbers(alphas)}"
        for group in self.groups():
            norm = "depends on the base" if group["norm"] is None else f"{group['norm']:.4g}"
            blocks = f"{plural(group['blocks'], 'block')}, " if group["blocks"] else ""
            place = group["group"] if group["part"] == "model" else f"{group['part']}: {group['group']}"
            yield f"  {place}: {blocks}{plural(group['layers'], 'layer')}, norm of the change {norm}"
        if self.trigger_words:
            yield f"Trigger words: {', '.join(self.trigger_words)}"
        for name, right in self.hashes.items():
            yield f"{name}: {'is that of the tensors' if right else 'is not that of the tensors: they were changed'}"
        for key, text in sorted(self.metadata.items()):
            if key not in self.hashes and key not in _TRIGGERS:
                yield f"  {key} = {_short(text)}"
        if self.unknown:
            yield f"Unknown keys: {_listed(self.unknown)}"
        yield from (f"Problem: {text}" for text in self.problems[:_MOST_LINES])
        if len(self.problems) > _MOST_LINES:
            yield f"and {plural(len(self.problems) - _MOST_LINES, 'problem')} more"


def inspect_lora(path: str | Path, watch: WatchTool | None = None) -> LoraInfo:
    """Read a LoRA file layer by layer. Damaged layers are reported, not raised."""
    with open_lora(path) as lora:
        layers, problems = [], []
        prefixes = [*lora.layers, *lora.untrainable]
        for done, prefix in enumerate(prefixes):
            try:
                layers.append(_describe_layer(lora, prefix))
            except TrainError as error:
                problems.append(str(error))
                layers.append(_layer(lora, prefix))
            if watch is not None:
                watch(done + 1, len(prefixes))
        return LoraInfo(
            path=str(path),
            bytes=lora.path.stat().st_size,
            values=sum(math.prod(lora.shape(key)) for key in lora.keys),
            dtypes=dict(Counter(lora.dtype(key) for key in lora.keys if not key.endswith(".alpha"))),
            naming=lora.naming,
            keys="lora_A and lora_B" if lora.has_peft_keys else "lora_up and lora_down",
            kinds=dict(Counter(layer.kind for layer in layers).most_common()),
            layers=layers,
            unknown=lora.unknown,
            metadata=lora.metadata,
            hashes=_check_hashes(lora),
            partial=_is_partial(lora.path, lora.metadata),
            problems=problems,
        )


def _describe_layer(lora: LoraReader, prefix: str) -> LayerInfo:
    kind = lora.kind(prefix)
    if prefix in lora.untrainable:
        return _layer(lora, prefix)
    parts = lora.parts(prefix)
    rank = next((len(parts[name]) for name in _RANKED if name in parts), None)
    if "oft_blocks" in parts:
        rank = parts["oft_blocks"].shape[-1]
    alpha = float(parts["alpha"]) if "alpha" in parts else None if rank is None else float(rank)
    norm = None
    if kind in ADDED:
        change = lora.change(prefix)
        norm = None if change is None else change.norm()
    return _layer(lora, prefix, rank, alpha, norm)


def _layer(
    lora: LoraReader, prefix: str, rank: int | None = None, alpha: float | None = None, norm: float | None = None
) -> LayerInfo:
    block = block_of(prefix)
    return LayerInfo(prefix, lora.kind(prefix), component_of(prefix), block.group, block.number, rank, alpha, norm)


_RANKED = ("lora_down.weight", "hada_w1_b", "lokr_w2_b", "lokr_w1_b")  # whose rows are the rank


def _total(layers: list[LayerInfo]) -> float | None:
    norms = [layer.norm for layer in layers if layer.norm is not None]
    return math.sqrt(sum(norm * norm for norm in norms)) if norms else None


def _counts(numbers: Any) -> dict[str, int]:
    counts = Counter(number for number in numbers if number is not None)
    return {f"{number:g}": counts[number] for number in sorted(counts)}


def _check_hashes(lora: LoraReader) -> dict[str, bool]:
    claimed = {name: lora.metadata[name] for name in _HASHES if lora.metadata.get(name)}
    found = lora.hash() if claimed else ""
    return {name: text.lower().removeprefix("0x") == found for name, text in claimed.items()}


def _is_partial(path: Path, metadata: Mapping[str, str]) -> bool:
    """Whether the trainer marked it as the file of an interrupted run, in its metadata or its name."""
    return bool(metadata.get(PARTIAL)) or _PARTIAL_NAME.fullmatch(path.stem) is not None


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_LINES} more" if len(names) > _MOST_LINES else ""
    return ", ".join(names[:_MOST_LINES]) + more
