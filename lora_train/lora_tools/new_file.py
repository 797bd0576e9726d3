"""The LoRA file that a tool writes: its tensors, its metadata with where it comes from, and the report on it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import TrainError
from ...quantity import byte_count, plural
from ..adapters import PEFT_KEY
from ..export import DTYPES, PARTIAL, save
from .change import Product
from .reader import LoraReader

MADE_FROM = "streamcache.made_from"
TRIGGER_PHRASE = "modelspec.trigger_phrase"
WatchTool = Callable[[int, int], None]  # layers done, of how many

# What describes one training, of which a merged file has several.
_OF_ONE_RUN = (
    *("ss_output_name", "ss_training_comment", "ss_training_started_at", "ss_training_finished_at", "ss_session_id"),
    *("ss_steps", "ss_max_train_steps", "ss_epoch", "ss_num_epochs", "ss_seed", PARTIAL),
    *("modelspec.title", "modelspec.date", "modelspec.thumbnail", "modelspec.description"),
)
_LONGEST_HISTORY = 20_000  # characters of a file's own provenance that are copied


@dataclass(frozen=True)
class NewLayer:
    """A layer of a new file: what it was made from, and how much of it was kept."""

    prefix: str
    kind: str  # of the source
    ranks: tuple[int, ...]  # of the sources, 0 for kinds without one
    rank: int  # 0: copied, without factors
    kept: float = 1.0  # the share of the squared norm
    squared: float = 0.0  # the squared norm of the change


@dataclass(frozen=True)
class ToolReport:
    """What a tool wrote."""

    path: str
    bytes: int
    layers: list[NewLayer]
    kept: float  # of all layers' changes: the share of the squared norm
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report for people."""
        made = [layer for layer in self.layers if layer.rank]
        lines = [f"Wrote {self.path}: {plural(len(self.layers), 'layer')}, {byte_count(self.bytes)}"]
        if made:
            lines.append(f"Rank: {describe_numbers([rank for layer in made for rank in layer.ranks if rank])} → "
                         f"{describe_numbers([layer.rank for layer in made])}")  # fmt: skip
            least = min(made, key=lambda layer: layer.kept)
            lines.append(f"Kept energy: {self.kept:.2%} of the squared norm; least {least.kept:.2%} in {least.prefix}")
        other = Counter(layer.kind for layer in made if layer.kind != "LoRA")
        lines += [f"Converted to LoRA: {plural(count, 'layer')} of {kind}" for kind, count in other.items()]
        return lines + self.notes


class NewLora:
    """A LoRA file in the making. The tensors are in memory; the file is written at once, by `write`."""

    def __init__(self, path: str | Path, dtype: str | None = None, overwrite: bool = False) -> None:
        self.path = Path(path)
        if dtype is not None and dtype not in DTYPES:
            raise TrainError(f'dtype: found "{dtype}", expected one of {", ".join(DTYPES)}')
        if self.path.suffix != ".safetensors":
            raise TrainError(f"{path}: expected a file name that ends in .safetensors")
        if self.path.is_dir() or (self.path.exists() and not overwrite):
            raise TrainError(f"{path}: exists; give another name, or --overwrite to replace it")
        self.dtype = None if dtype is None else DTYPES[dtype]
        self.tensors: dict[str, Tensor] = {}
        self.layers: list[NewLayer] = []
        self.notes: list[str] = []

    def add(self, key: str, tensor: Tensor, dtype: torch.dtype | None = None) -> None:
        """Keep a copy: the source is a view of its file. Alphas stay float32."""
        wanted = tensor.dtype if not tensor.is_floating_point() else self.dtype or dtype or tensor.dtype
        if key.endswith(".alpha"):
            wanted = torch.float32
        stored = tensor.to(wanted, copy=True).contiguous()
        if stored.is_floating_point() and not stored.float().isfinite().all():
            if wanted is torch.float16:
                raise TrainError(f"{self.path}: {key} does not fit into {wanted}; choose fp32 or bf16")
            raise TrainError(f"{self.path}: {key} does not fit into {wanted}; lower its weight")
        self.tensors[key] = stored

    def add_product(self, layer: NewLayer, product: Product, scale: float, dtype: torch.dtype, peft: bool) -> None:
        """The factors of a layer, with an alpha that gives this scale, or as PEFT names them, without one."""
        scale = 1.0 if peft or not scale else scale
        down = product.down.reshape(product.rank, *product.shape[1:])
        up = (product.up / scale).reshape(*product.up.shape, *[1] * (down.ndim - 2))
        names = ("lora_B.weight", "lora_A.weight") if peft else ("lora_up.weight", "lora_down.weight")
        for name, tensor in zip(names, (up, down)):
            self.add(f"{layer.prefix}.{name}", tensor, dtype)
        if not peft:
            self.add(f"{layer.prefix}.alpha", torch.tensor(scale * product.rank))
        self.layers.append(layer)

    def write(self, metadata: Mapping[str, str]) -> ToolReport:
        save(self.path, self.tensors, {**metadata, "ss_output_name": self.path.stem})
        return ToolReport(str(self.path), self.path.stat().st_size, self.layers, self.kept(), self.notes)

    def kept(self) -> float:
        """The share of the squared norm of all changes that the new file has."""
        total = sum(layer.squared for layer in self.layers)
        return sum(layer.kept * layer.squared for layer in self.layers) / total if total else 1.0

    def sizes(self) -> dict[str, str]:
        """The metadata on rank and alpha, for a file of LoRAs."""
        ranks = [layer.rank for layer in self.layers if layer.rank]
        alphas = [float(value) for key, value in self.tensors.items() if key.endswith(".alpha")]
        same = len(set(ranks)) == 1 and len(set(alphas)) <= 1
        dim, alpha = (ranks[0], alphas[0] if alphas else ranks[0]) if same else ("Dynamic", "Dynamic")
        return {
            "ss_network_module": "networks.lora",
            "ss_network_dim": str(dim),
            "ss_network_alpha": str(alpha),
            "ss_network_args": json.dumps({"algo": "lora", "dora": False}),
        }


def carried_metadata(readers: Sequence[LoraReader], one_training: bool, peft: bool = False) -> dict[str, str]:
    """What all sources say alike, and the trigger words of all; of several trainings nothing that describes one.

    PEFT's configuration is kept only with `peft`: where ranks or names change, its alphas are applied.
    """
    first, *others = (reader.metadata for reader in readers)
    kept = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    dropped = {MADE_FROM, *(() if peft else (PEFT_KEY,)), *(() if one_training else _OF_ONE_RUN)}
    phrases = dict.fromkeys(filter(None, (reader.metadata.get(TRIGGER_PHRASE) for reader in readers)))
    triggers = {TRIGGER_PHRASE: ", ".join(phrases)} if phrases else {}
    return {k: v for k, v in kept.items() if k not in dropped and not k.startswith("sshs_")} | triggers


def made_from(tool: str, readers: Sequence[LoraReader], weights: Sequence[float] = (), **facts: object) -> str:
    """Where a file comes from, as JSON: the tool, its settings, and each source with its hash and own provenance."""
    sources: list[dict[str, Any]] = []
    for number, reader in enumerate(readers):
        source: dict[str, Any] = {"file": reader.path.name, "sshs_model_hash": reader.hash()}
        if weights:
            source["weight"] = weights[number]
        earlier = _history(reader.metadata.get(MADE_FROM, ""))
        sources.append(source | ({"made_from": earlier} if earlier else {}))
    return json.dumps({"tool": tool, **{k: v for k, v in facts.items() if v is not None}, "sources": sources})


def describe_numbers(numbers: Sequence[float]) -> str:
    """`16`, or `4–32, mostly 16`."""
    if not numbers:
        return "none"
    counts = Counter(numbers)
    if len(counts) == 1:
        return f"{numbers[0]:g}"
    return f"{min(numbers):g}–{max(numbers):g}, mostly {counts.most_common(1)[0][0]:g}"


def _history(text: str) -> Any:
    try:
        return json.loads(text) if text and len(text) <= _LONGEST_HISTORY else None
    except (ValueError, RecursionError):
        return None
