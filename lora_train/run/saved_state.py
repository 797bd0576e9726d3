"""Saved states: everything that decides the next step, in one safetensors file that is there whole or not at all."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from ..config import TrainConfig, differences
from ..errors import TrainError

# A container is written as a list whose first item says what it is; a plain value stands for itself.
_TENSOR, _DICT, _LIST, _TUPLE, _FLOAT = "tensor", "dict", "list", "tuple", "float"

log = logging.getLogger("streamcache")

FORMAT = "streamcache-state-1"
_GLOB = "step-*.safetensors"


@dataclass(frozen=True)
class StateOrigin:
    """What a state belongs to: a run is only itself again on the same data with the same settings."""

    dataset: str
    generation: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class SavedState:
    """A run after `step` steps. Noise, times, dropout and order follow from (seed, batch number), so that no
    generator has a state of its own: `position`, the number of consumed batches, is enough."""

    step: int
    position: int
    epoch_length: int
    origin: StateOrigin
    adapter: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    ema: Mapping[str, Tensor] = field(default_factory=dict)
    scaler: Mapping[str, Any] = field(default_factory=dict)


class StateFolder:
    """The states of a run, of which the latest few are kept."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.keep = path, keep

    def save(self, state: SavedState) -> Path:
        """Write a state, then drop the oldest. If it cannot be written, every earlier state stays."""
        content = _encode(state)
        path = self.path / f"step-{state.step:08}.safetensors"
        temporary = path.with_suffix(".part")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(self.path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise TrainError(self._failed(path, error)) from error
        for old in self.files()[: -self.keep]:
            old.unlink(missing_ok=True)
        log.info("Saved the state of step %d (%.1f MB)", state.step, len(content) / 1e6)
        return path

    def files(self) -> list[Path]:
        """Paths of the states, oldest first."""
        return sorted(self.path.glob(_GLOB))

    def latest(self) -> SavedState | None:
        """The newest state that can be read; a damaged one is named and passed over."""
        damaged = None
        for path in reversed(self.files()):
            try:
                return read_state(path)
            except TrainError as error:
                damaged = error
                log.warning("%s; trying the state before it", error)
        if damaged is not None:
            raise damaged
        return None

    def _failed(self, path: Path, error: OSError) -> str:
        last = self.files()
        kept = f"the last saved state is {last[-1].name}" if last else "no state was saved before"
        return f"{path}: could not be saved ({error.strerror}); {kept}. Make room, then resume"


def read_state(path: Path) -> SavedState:
    """A state from its file."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no iterator of its own
    except (OSError, safetensors.SafetensorError) as error:
        raise TrainError(f"{path}: cannot be read as a saved state ({error})") from None
    if metadata.get("format") != FORMAT:
        raise TrainError(f'{path}: format "{metadata.get("format")}" is not "{FORMAT}"; resume it with its own release')
    fields = unpack(json.loads(metadata["state"]), tensors)
    return SavedState(**{**fields, "origin": StateOrigin(**fields["origin"])})


def check_origin(state: SavedState, dataset: Any, config: TrainConfig) -> None:
    """Refuse to go on with other data or settings, naming each, unless that is asked for."""
    changes = differences(state.origin.config, config)
    if state.origin.dataset != dataset.id:
        changes.insert(0, f"dataset: was {state.origin.dataset}, is {dataset.id}")
    elif state.origin.generation != dataset.generation:
        changes.insert(0, f"dataset: its content was {state.origin.generation[:12]}, is {dataset.generation[:12]}")
    if changes and not config.accept_changes:
        raise TrainError(
            f"the run was at step {state.step} with other inputs: {'; '.join(changes)}. Go on with the new ones by "
            'accept_changes = true, or start anew with mode = "new"'
        )
    for change in changes:
        log.warning("Resuming with a change: %s", change)


def resumed_position(state: SavedState, epoch_length: int) -> int:
    """Where to go on in the order: the same place, or the next whole epoch where epochs have another length now."""
    if state.epoch_length == epoch_length:
        return state.position
    return -(-state.position // state.epoch_length) * epoch_length


def _encode(state: SavedState) -> bytes:
    tree, tensors = pack({**vars(state), "origin": asdict(state.origin)})
    return safetensors.torch.save(tensors, {"format": FORMAT, "state": json.dumps(tree, allow_nan=False)})


def _sync_folder(path: Path) -> None:
    """Make the new name itself durable, where a folder can be synced."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def pack(structure: Any) -> tuple[Any, dict[str, Tensor]]:
    """(a tree that JSON can hold, the tensors that it names), on the CPU."""
    tensors: dict[str, Tensor] = {}
    return _pack(structure, "", tensors), tensors


def unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The structure again, with int keys, tuples and dtypes as they were."""
    if not isinstance(tree, list):
        return tree
    kind, content = tree
    if kind == _TENSOR:
        return tensors[content]
    if kind == _FLOAT:
        return float(content)
    if kind == _DICT:
        return {key: unpack(value, tensors) for key, value in content}
    items = [unpack(value, tensors) for value in content]
    return tuple(items) if kind == _TUPLE else items


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return [_TENSOR, name]
    if isinstance(value, (bool, int, str, type(None))):
        return value
    if isinstance(value, float):
        return _float(float(value))
    if isinstance(value, dict):
        return [_DICT, [[key, _pack(item, _join(name, key), tensors)] for key, item in value.items()]]
    if isinstance(value, (list, tuple)):
        items = [_pack(item, _join(name, index), tensors) for index, item in enumerate(value)]
        return [_TUPLE if isinstance(value, tuple) else _LIST, items]
    raise TypeError(f"{name}: {type(value).__name__} cannot be kept in a saved state")


def _float(value: float) -> Any:
    # JSON has no nan and no infinity; every other float survives it exactly.
    return value if math.isfinite(value) else [_FLOAT, str(value)]


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)
