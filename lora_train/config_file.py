"""Named values of a file, of flags or of a node become a configuration: old names, refused names, TOML."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..dataset_cache import closest_name
from ..errors import TrainError
from .config import TRAIN_SETTINGS, TrainConfig

log = logging.getLogger("streamcache")

# Earlier names and the names of other trainers → the setting that they load into.
RENAMED_SETTINGS = {
    "lr": "learning_rate",
    "network_dim": "rank",
    "network_alpha": "alpha",
    "algorithm": "adapter",
    "train_batch_size": "batch_size",
    "grad_accumulation_steps": "accumulate",
    "gradient_accumulation_steps": "accumulate",
    "max_train_steps": "steps",
    "max_train_epochs": "epochs",
    "max_grad_norm": "clip_norm",
    "lr_scheduler": "lr_schedule",
    "lr_warmup_steps": "warmup_steps",
    "loss_function": "loss",
    "loss_type": "loss",
    "training_dtype": "precision",
    "mixed_precision": "precision",
    "lora_dtype": "adapter_dtype",
    "gradient_checkpointing": "checkpointing",
    "caption_dropout_rate": "caption_dropout",
    "prior_loss_weight": "prior_weight",
    "existing_lora": "start_from",
    "dataloader_prefetch": "prefetch",
}

_TEXT = "the dataset contains encoded text, so gradients cannot reach the text encoder; train the model only"
REFUSED = {"train_text_encoder": _TEXT, "text_encoder_lr": _TEXT, "text_encoder_learning_rate": _TEXT}


def load_config(
    values: Mapping[str, Any], place: str = "settings", notice: Callable[[str], None] = log.warning
) -> TrainConfig:
    """A validated configuration from named values; old names work too. Every error starts with `place`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        known = _resolve(name, place)
        if known in found:
            raise TrainError(f"{place}: {name} and {known} are the same setting; keep one of them")
        if known != name:
            notice(f"{place}: {name} is now {known}")
        found[known] = value
    try:
        return TrainConfig(**found)
    except TrainError as error:
        raise TrainError(f"{place}: {error}") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """The values in a TOML file, not validated, under the names used in the file."""
    try:
        with open(path, "rb") as file:
            return _toml().load(file)
    except OSError as error:
        raise TrainError(f"{path}: cannot be read ({error.strerror}); give the path of a TOML file") from None
    except ValueError as error:
        raise TrainError(f"{path}: not valid TOML: {error}") from None


def _resolve(name: str, place: str) -> str:
    if name in REFUSED:
        raise TrainError(f"{place}: {name} is refused: {REFUSED[name]}")
    known = RENAMED_SETTINGS.get(name, name)
    if known not in TRAIN_SETTINGS:
        hint = closest_name(name, TRAIN_SETTINGS) or f"; expected one of {', '.join(TRAIN_SETTINGS)}"
        raise TrainError(f'{place}: unknown setting "{name}"{hint}')
    return known


def _toml() -> Any:
    try:
        return importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise TrainError("TOML files need Python 3.11, or the package tomli: pip install tomli") from None
