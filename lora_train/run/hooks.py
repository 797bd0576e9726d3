"""What is called while a run trains, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ...dataset_cache import Traffic
from .exports import Export
from .folder import Run
from .metrics import TrainProgress


@dataclass(frozen=True)
class TrainHooks:
    """Callbacks, called between steps from the training thread; training stops when `stop` returns True."""

    progress: Callable[[TrainProgress], None] | None = None
    samples: Callable[[int, Sequence[Image.Image]], None] | None = None
    validation: Callable[[int, float], None] | None = None
    exported: Callable[[Export], None] | None = None
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    step: int
    steps: int
    lora: Path
    data_wait: float  # share of the training time, without pauses
    seconds: float
    stopped: bool = False
    exports: tuple[Path, ...] = ()  # the LoRA files along the way, those from before a resume too
    missing: tuple[str, ...] = ()  # the names of those that are gone
    traffic: Traffic | None = None  # what reading has cost, if the dataset is remote


# Called with the opened run; its hooks are used until the run ends.
WatchRun = Callable[[Run], AbstractContextManager[TrainHooks]]
