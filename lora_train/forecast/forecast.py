"""The forecast of a training's memory: one step of the real code, on tensors without data."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import fake_tensor

from ...dataset_cache import Dataset, byte_count
from ...errors import TrainError
from ..compute import attention_kernel
from ..config import TrainConfig
from ..data import BatchPlan, Loaded, Order
from ..denoiser import Denoiser, Traceable
from ..memory import saving_memory
from ..objective import RULES
from ..parts import make_stepper
from ..session import make_order
from ..step import Stepper
from .peak import PeakMemory
from .shapes import Shapes

log = logging.getLogger("streamcache")

MARGIN = 1.05  # what allocators lose between tensors


class Untraceable(TrainError):
    """The memory of this training cannot be computed in advance. It may train nevertheless."""


@dataclass(frozen=True)
class Forecast:
    """Bytes that a training needs on its device, and what the device has. `activations` is the rest of the peak."""

    weights: int
    adapter: int
    optimizer: int  # with EMA
    activations: int
    peak: int
    room: int  # for this training, 0 if unknown
    device: str
    rows: int  # of the largest batch
    shape: tuple[int, ...]  # of its latents, without the batch axis
    seconds: float

    @property
    def fits(self) -> bool:
        return not self.room or self.peak * MARGIN <= self.room

    def sentence(self) -> str:
        """For people."""
        needs = (
            f"Memory: the training needs {byte_count(self.peak)} (weights {byte_count(self.weights)}, activations "
            f"{byte_count(self.activations)}, adapter {byte_count(self.adapter)}, optimizer "
            f"{byte_count(self.optimizer)})"
        )
        if not self.room:
            return needs
        room = byte_count(self.room)
        if self.fits:
            return f"{needs}, and {self.device} has {room}; it fits"
        return f"{needs}, and {self.device} has {room}; it does not fit"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape), "seconds": round(self.seconds, 3), "fits": self.fits}


def forecast_training(
    denoiser: Denoiser, dataset: Dataset, config: TrainConfig, offload: bool | None = None
) -> Forecast:
    """What a training with these settings needs, for its largest batch.

    The model is neither loaded nor changed. `offload` overrides the denoiser's own setting. Raises `Untraceable` if the
    model's code needs data.
    """
    if not isinstance(denoiser, Traceable):
        raise Untraceable("the memory of this training is not known in advance: its model has no forecast")
    began = time.monotonic()
    order, _ = make_order(dataset, config)
    plan = largest_batch(dataset, order)
    batch = dataset.read_batch(plan.indices, variants=plan.variants)
    assert batch.latents is not None, "the order has checked the latents"
    shapes = Shapes()
    # What has no part in memory is left out: it would read data.
    config = replace(config, caption_dropout=0.0, start_from="", precision=_without_scaler(config))
    config = replace(config, preservation_share=1.0)  # a batch that takes part
    try:
        with _quiet(), torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
            stack.enter_context(denoiser.traced(dataset, shapes, offload))
            stack.enter_context(shapes.mode)
            given = shapes.of_batch(batch)
            found = _step(denoiser, dataset, config, Loaded(plan, given))
        room, resident = denoiser.room(), denoiser.resident(found.away, found.peak)
    except Exception as failed:
        error = failed.__cause__ or failed  # the step names the images of a model call that fails
        if isinstance(error, TrainError):
            raise error from None
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise Untraceable(f"the memory of this training is not known in advance ({reason[:300]})") from error
    shape, seconds = tuple(batch.latents.shape[1:]), time.monotonic() - began
    return Forecast(
        weights=found.weights + resident, adapter=found.adapter, optimizer=found.optimizer,
        activations=found.peak - found.weights - found.adapter - found.optimizer, peak=found.peak + resident,
        room=room, device=str(denoiser.device), rows=len(plan.indices), shape=shape, seconds=seconds,
    )  # fmt: skip


def largest_batch(dataset: Dataset, order: Order) -> BatchPlan:
    """The batch of the first epoch with the most numbers in its latents."""
    numbers = {int(indices[0]): int(np.prod(bucket.shape)) for bucket, indices in dataset.buckets().items()}
    column = np.asarray(dataset.column("bucket"))
    size = {int(column[first]): numel for first, numel in numbers.items()}
    epoch = order.epoch(0)
    start, stop, prior_start, prior_stop = epoch.ranges.T
    rows = (stop - start) + (prior_stop - prior_start)
    first = epoch.samples[np.where(stop > start, start, prior_start)]
    numel = np.array([size[int(bucket)] for bucket in column[first]])
    return order.plan(epoch, int((rows * numel).argmax()))


@contextmanager
def adapters_attached(stepper: Stepper) -> Iterator[None]:
    """As a session attaches them for its steps."""
    layers, fixed = stepper.denoiser.adaptable(), stepper.training_adapter
    with stepper.network.attached(layers), nullcontext() if fixed is None else fixed.attached(layers, first=True):
        yield


def room_on(device: torch.device, taken: int = 0) -> int:
    """Bytes that a device has for a training whose model takes `taken` there already; 0 if unknown."""
    if device.type == "cpu":
        free = _free_ram()
        return free + taken if free else 0
    try:
        free, _ = torch.accelerator.get_memory_info(device) if hasattr(torch.accelerator, "get_memory_info") else (
            torch.cuda.mem_get_info(device)
        )  # fmt: skip
    except (RuntimeError, AssertionError, AttributeError):  # a device that cannot tell
        return 0
    return free + taken


@dataclass(frozen=True)
class _Found:
    weights: int
    away: int  # bytes of weights that are not on the device
    adapter: int
    optimizer: int
    peak: int


def _step(denoiser: Denoiser, dataset: Dataset, config: TrainConfig, loaded: Loaded) -> _Found:
    """One step as the loop takes it, with the optimizer's state in place."""
    assert isinstance(denoiser, Traceable)
    memory = PeakMemory(denoiser.device)
    own = list(denoiser.weights())
    weights = memory.hold(own)
    stepper = make_stepper(denoiser, dataset, config, config.objective(RULES), None)
    adapter = memory.hold(stepper.network.parameters())
    if stepper.training_adapter is not None:
        adapter += memory.hold([*stepper.training_adapter.parameters(), *stepper.training_adapter.buffers()])
    _make_state(stepper, config)
    optimizer = memory.hold(_state(stepper))
    memory.peak = memory.now
    if config.accumulate > 1:
        _make_gradients(stepper)
    with (
        adapters_attached(stepper),
        saving_memory(denoiser.blocks(), config.checkpointing, config.activation_offload, denoiser.ram),
        attention_kernel(config.attention),
        memory,
    ):
        stepper.accumulate = 1
        stepper.backward(iter([loaded]))
        _update(stepper)
    return _Found(weights, sum(_nbytes(own)) - weights, adapter, optimizer, memory.peak)


@contextmanager
def _quiet() -> Iterator[None]:
    """The training itself will log the same, and what torch cannot compute without data is told by an exception."""
    levels = {log: logging.ERROR, fake_tensor.log: logging.CRITICAL}
    before = {logger: logger.level for logger in levels}
    try:
        for logger, level in levels.items():
            logger.setLevel(level)
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def _make_gradients(stepper: Stepper) -> None:
    for parameter in stepper.network.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)


def _make_state(stepper: Stepper, config: TrainConfig) -> None:
    """The optimizer's tensors, as its first step makes them; of one that needs data, as many as are known."""
    _make_gradients(stepper)
    try:
        stepper.optimizer.step()
    except Exception:  # without data, optimizers of other packages fail in ways of their own
        stepper.optimizer.state.clear()
        dtype = torch.uint8 if "8bit" in (config.other_optimizer or config.optimizer).lower() else torch.float32
        for parameter in stepper.network.parameters():
            if parameter.requires_grad:
                moments = {name: torch.empty_like(parameter, dtype=dtype) for name in ("mean", "square")}
                stepper.optimizer.state[parameter] = moments
    stepper.optimizer.zero_grad(set_to_none=True)


def _update(stepper: Stepper) -> None:
    try:
        stepper.clip()
        stepper.update()
    except Exception:  # an optimizer that needs data: its state is counted already
        return


def _state(stepper: Stepper) -> Iterator[Tensor]:
    for values in stepper.optimizer.state.values():
        yield from (value for value in values.values() if isinstance(value, Tensor))
    if stepper.ema is not None:
        yield from stepper.ema.tensors().values()


def _without_scaler(config: TrainConfig) -> str:
    # fp16 needs the same memory as bf16, but its scaler looks at the gradients.
    return "bf16" if config.precision == "fp16" else config.precision


def _nbytes(tensors: Iterable[Any]) -> Iterator[int]:
    seen: set[int] = set()
    for tensor in tensors:
        names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        for part in [getattr(tensor, name) for name in names] or [tensor]:
            storage = part.untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                yield storage.nbytes()


def _free_ram() -> int:
    try:
        import psutil  # comes with ComfyUI

        return int(psutil.virtual_memory().available)
    except ImportError:
        names = getattr(os, "sysconf_names", {})
        known = {"SC_AVPHYS_PAGES", "SC_PAGE_SIZE"} <= set(names)
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else 0
