"""A LoRA at another rank: each layer's change cut to its largest singular values."""

from __future__ import annotations

from pathlib import Path

from ...errors import TrainError
from .change import change_of, scale_of
from .new_file import MADE_FROM, NewLayer, NewLora, ToolReport, WatchTool, carried_metadata, made_from
from .rank import RankRule
from .reader import LoraReader, open_lora


def resize_lora(
    source: str | Path,
    out: str | Path,
    rule: RankRule,
    dtype: str | None = None,
    overwrite: bool = False,
    watch: WatchTool | None = None,
) -> ToolReport:
    """Write the LoRA with the ranks that `rule` chooses. LoHa, LoKr and full differences become LoRAs.

    A layer whose rank is not above the new one keeps its factors; the scale alpha / rank of each layer stays.
    """
    new = NewLora(out, dtype, overwrite)
    with open_lora(source) as lora:
        lora.refuse_other_kinds("resize")
        for done, prefix in enumerate(lora.layers):
            _resize_layer(lora, prefix, new, rule)
            if watch is not None:
                watch(done + 1, len(lora.layers))
        for key in lora.unknown:
            new.add(key, lora.tensor(key))
        metadata = carried_metadata([lora], one_training=True) | new.sizes()
        provenance = made_from("resize", [lora], rank=str(rule), kept_energy=round(new.kept(), 6))
    return new.write({**metadata, MADE_FROM: provenance})


def _resize_layer(lora: LoraReader, prefix: str, new: NewLora, rule: RankRule) -> None:
    where = f"{lora.where}: {prefix}"
    parts, kind, dtype = lora.parts(prefix), lora.kind(prefix), lora.dtype_of(prefix)
    change = change_of(parts, where)
    if change is None:
        for part, tensor in parts.items():
            new.add(f"{prefix}.{part}", tensor, dtype)
        new.layers.append(NewLayer(prefix, kind, (), 0))
        return
    try:
        product, kept = rule.reduce(change)
    except TrainError as error:
        raise TrainError(f"{where}: {error}") from None
    is_lora = "lora_down.weight" in parts
    ranks = (len(parts["lora_down.weight"]),) if is_lora else ()
    layer = NewLayer(prefix, kind, ranks, product.rank, kept, change.norm() ** 2)
    new.add_product(layer, product, scale_of(parts) if is_lora else 1.0, dtype, lora.has_peft_keys)
    if "diff_b" in parts:
        new.add(f"{prefix}.diff_b", parts["diff_b"], dtype)
