"""The settings of a grid, from which node inputs and flags come."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import TrainError
from ...setting import Setting, check_settings, declare, settings_of

_COLUMNS, _ROWS, _IMAGES = "columns", "rows", "pictures"


@dataclass(frozen=True)
class GridSettings:
    """What every picture of a grid has in common, and how often each LoRA and prompt is drawn."""

    strengths: tuple[float, ...] = declare(
        (1.0,), "Strengths of each LoRA, one column each", _COLUMNS, low=-100, high=100
    )
    base: bool = declare(True, "First a column without a LoRA", _COLUMNS)
    seeds: tuple[int, ...] = declare((1,), "Seeds of each prompt, one row each", _ROWS, low=0, high=2**64 - 1)
    steps: int = declare(20, "Sampling steps", _IMAGES, low=1, high=10_000)
    cfg: float = declare(7.0, "CFG scale; 1 for distilled models", _IMAGES, low=0, high=100, step=0.1)
    sampler: str = declare("euler", "Sampler, by its name in KSampler", _IMAGES)
    scheduler: str = declare("normal", "Scheduler, by its name in KSampler", _IMAGES)
    width: int = declare(512, "Width of each picture in pixels", _IMAGES, low=16, high=16384, step=8)
    height: int = declare(512, "Height of each picture in pixels", _IMAGES, low=16, high=16384, step=8)

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("strengths", "seeds"):
            if not getattr(self, name):
                raise TrainError(f"{name}: the list is empty; expected at least one number, such as 1")


GRID_SETTINGS: dict[str, Setting] = settings_of(GridSettings)
