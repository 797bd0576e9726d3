"""What to change if a training does not fit: the cheapest settings that make it fit, each with its own forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...dataset_cache import Dataset, byte_count
from ...errors import TrainError
from ..config import TrainConfig
from ..denoiser import Denoiser, Traceable
from ..optimizers import available
from .forecast import MARGIN, Forecast, Untraceable, forecast_training

# A forecast with some settings changed.
Ask = Callable[[Mapping[str, Any]], Forecast]

SMALL_OPTIMIZERS = {"AdamW": "AdamW8bit", "Adam": "AdamW8bit"}

NOTHING_LEFT = "No setting is left that needs less memory; smaller images or a base in fp8 do"


@dataclass(frozen=True)
class Advice:
    """Settings to change, and what the training needs then."""

    settings: Mapping[str, Any]
    forecast: Forecast

    def sentence(self) -> str:
        """For people."""
        change = ", ".join(f"{name} = {_written(value)}" for name, value in self.settings.items())
        needed = byte_count(self.forecast.peak)
        if self.forecast.fits:
            return f"With {change} it needs {needed}"
        return f"With {change} it needs {needed}, which is still too much"

    def to_json(self) -> dict[str, Any]:
        return {"settings": dict(self.settings), "forecast": self.forecast.to_json()}


@dataclass(frozen=True)
class MemoryReport:
    """The forecast of a training, or why there is none; and what to change if it does not fit."""

    forecast: Forecast | None
    advice: Sequence[Advice] = ()
    problem: str = ""

    @property
    def fits(self) -> bool:
        return self.forecast is None or self.forecast.fits

    def lines(self) -> list[str]:
        """For people."""
        if self.forecast is None:
            return [self.problem]
        fitting = [advice.sentence() for advice in self.advice if advice.forecast.fits]
        if self.fits or fitting:
            return [self.forecast.sentence(), *fitting]
        return [self.forecast.sentence(), self.advice[-1].sentence() if self.advice else NOTHING_LEFT]

    def to_json(self) -> dict[str, Any]:
        forecast = None if self.forecast is None else self.forecast.to_json()
        return {"forecast": forecast, "advice": [advice.to_json() for advice in self.advice], "problem": self.problem}


def report_memory(denoiser: Denoiser, dataset: Dataset, config: TrainConfig) -> MemoryReport:
    """What a training needs and, if that does not fit, the cheapest change that does. A model that cannot be traced is
    not an error."""

    def ask(change: Mapping[str, Any]) -> Forecast:
        settings = {name: value for name, value in change.items() if name != "offload"}
        return forecast_training(denoiser, dataset, replace(config, **settings), change.get("offload"))

    try:
        forecast = forecast_training(denoiser, dataset, config)
        if forecast.fits or not isinstance(denoiser, Traceable):
            return MemoryReport(forecast)
        return MemoryReport(forecast, find_fitting(forecast, config, ask, denoiser.can_offload))
    except Untraceable as error:
        return MemoryReport(None, problem=str(error))


def find_fitting(found: Forecast, config: TrainConfig, ask: Ask, offloads: bool) -> list[Advice]:
    """The changes that were tried, in the order of what they cost; the last one fits, or nothing does. One without a
    forecast is left out.

    `offloads` says whether the model's weights can still be moved off the device.
    """
    tried: list[Advice] = []
    for change in _changes(found, config, offloads):
        try:
            tried.append(Advice(change, ask(change)))
        except TrainError:  # what the training itself would refuse, or what cannot be traced, is no advice
            continue
        if tried[-1].forecast.fits:
            break
    return tried


def _changes(found: Forecast, config: TrainConfig, offloads: bool) -> Iterator[dict[str, Any]]:
    """From the cheapest to the dearest in time. Changes that cannot be enough are left out."""
    missing = found.peak * MARGIN - found.room
    own = config.other_optimizer or config.optimizer_args  # which another optimizer may not take
    small = "" if own else SMALL_OPTIMIZERS.get(config.optimizer, "")
    if small in available() and missing < 0.7 * found.optimizer:
        yield {"optimizer": small}
    base: dict[str, Any] = {}
    if not config.checkpointing:
        base = {"checkpointing": True}
        yield dict(base)
    if config.batch_size > 1:
        yield base | _smaller_batch(config, config.batch_size // 2)
        if config.batch_size > 3:
            yield base | _smaller_batch(config, 1)
    if not config.activation_offload and found.device != "cpu":
        yield base | {"activation_offload": True}
    if offloads:
        yield base | {"offload": True}
        yield base | {"offload": True, "activation_offload": True}
    last = base | ({"offload": True, "activation_offload": True} if offloads else {})
    if config.batch_size > 1:
        yield last | _smaller_batch(config, 1)


def _smaller_batch(config: TrainConfig, size: int) -> dict[str, Any]:
    """A smaller batch with as many more accumulated ones: the same rows per step."""
    return {"batch_size": size, "accumulate": config.accumulate * -(-config.batch_size // size)}


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
