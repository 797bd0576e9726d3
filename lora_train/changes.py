"""Settings that changed since a run was saved: which cannot change, and which make it another run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .config import TRAIN_SETTINGS, TrainConfig

# They decide which weights exist and what is stored for each: a resumed run cannot change them.
FIXED_SETTINGS = (
    "adapter", "rank", "alpha", "rank_stabilised", "dora", "dora_axis", "lokr_factor", "targets", "start_from",
    "optimizer", "group_ranks", "group_alphas", "other_optimizer", "optimizer_args",
)  # fmt: skip


def differences(old: Mapping[str, Any], new: TrainConfig) -> list[str]:
    """Settings whose change makes `new` a different run than `old`, each with both values."""
    passing = {"steps", "epochs"} if new.lr_schedule == "constant" else set()
    # A setting that did not exist yet had the effect of its default.
    before = {**TrainConfig().to_dict(), **old}
    return [
        f"{name}: was {before[name]!r}, is {value!r}"
        for name, value in new.to_dict().items()
        if TRAIN_SETTINGS[name].limits.decides and name not in passing and not _same(name, before[name], value)
    ]


def _same(name: str, old: Any, new: Any) -> bool:
    # A moved folder does not make another file.
    return old == new or (
        name in ("start_from", "training_adapter")
        and re.split(r"[\\/]", str(old))[-1] == re.split(r"[\\/]", str(new))[-1]
    )
