"""Saved states: everything that a run needs to resume, in one safetensors file that is replaced atomically.

The file contains tensors and a JSON tree, no pickle, so loading it runs no code.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from ...dataset_cache import Dataset, replace_file
from ..config import TrainConfig, differences
from ..errors import TrainError

log = logging.getLogger("streamcache")

FORMAT = "streamcache-state-1"
_GLOB = "step-*.safetensors"
# In the JSON tree a container is a list whose first item names its kind; a plain value stands for itself.
_TENSOR, _DICT, _LIST, _TUPLE, _FLOAT = "tensor", "dict", "list", "tuple", "float"


@dataclass(frozen=True)
class StateOrigin:
    """The dataset and settings of a state. Only with the same ones does a resumed run repeat the original."""

    dataset: str
    generation: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class SavedState:
    """A run after `step` steps. Order, noise, timesteps and dropout follow from (seed, batch number), so no generator
    state is stored: `position`, the number of trained batches, is enough."""

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
    """The saved states of a run; only the latest few are kept."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.keep = path, keep

    def save(self, state: SavedState) -> Path:
        """Write a state, then delete the oldest ones. If writing fails, all earlier states stay."""
        content = _encode(state)
        path = self.path / f"step-{state.step:08}.safetensors"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        except OSError as error:
            raise TrainError(self._failed(path, error)) from error
        for old in self.files()[: -self.keep]:
            old.unlink(missing_ok=True)
        log.info("Saved the state of step %d (%.1f MB)", state.step, len(content) / 1e6)
        return path

    def files(self) -> list[Path]:
        """Paths of the states, oldest first."""
        return sorted(self.path.glob(_GLOB))

    def latest(self) -> SavedState | None:
        """The newest readable state; damaged ones are logged and skipped."""
        damaged = None
        for path in reversed(self.files()):
            try:
                return read_state(path)
            except TrainError as error:
                damaged = error
                log.warning("%s; trying the previous state", error)
        if damaged is not None:
            raise damaged
        return None

    def _failed(self, path: Path, error: OSError) -> str:
        last = self.files()
        kept = f"the last saved state is {last[-1].name}" if last else "no earlier state exists"
        return f"{path}: could not be saved ({error.strerror}); {kept}. Free disk space, then resume"


def read_state(path: Path) -> SavedState:
    """Read a state from its file."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is not iterable
    except (OSError, safetensors.SafetensorError) as error:
        raise TrainError(f"{path}: cannot be read as a saved state ({error})") from None
    if metadata.get("format") != FORMAT:
        found = metadata.get("format")
        raise TrainError(f'{path}: format "{found}" is not "{FORMAT}"; resume with the version that saved it')
    fields = unpack(json.loads(metadata["state"]), tensors)
    return SavedState(**{**fields, "origin": StateOrigin(**fields["origin"])})


def check_origin(state: SavedState, dataset: Dataset, config: TrainConfig) -> None:
    """Refuse to resume with a changed dataset or settings, unless `accept_changes` is set."""
    changes = differences(state.origin.config, config)
    if state.origin.dataset != dataset.id:
        changes.insert(0, f"dataset: was {state.origin.dataset}, is {dataset.id}")
    elif state.origin.generation != dataset.generation:
        changes.insert(0, f"dataset: content was {state.origin.generation[:12]}, is {dataset.generation[:12]}")
    if changes and not config.accept_changes:
        raise TrainError(
            f"the run was at step {state.step} with other inputs: {'; '.join(changes)}. Set accept_changes = true to "
            'resume with the new ones, or mode = "new" to start again'
        )
    for change in changes:
        log.warning("Resuming with a change: %s", change)


def resumed_position(state: SavedState, epoch_length: int) -> int:
    """The batch to continue with: the same one, or the start of the next epoch if the epoch length has changed."""
    if state.epoch_length == epoch_length:
        return state.position
    return -(-state.position // state.epoch_length) * epoch_length


def pack(structure: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a nested structure into a JSON tree and the tensors that it names, copied to the CPU."""
    tensors: dict[str, Tensor] = {}
    return _pack(structure, "", tensors), tensors


def unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The original structure, including int keys, tuples and dtypes."""
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


def _encode(state: SavedState) -> bytes:
    tree, tensors = pack({**vars(state), "origin": asdict(state.origin)})
    return safetensors.torch.save(tensors, {"format": FORMAT, "state": json.dumps(tree, allow_nan=False)})


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
    raise TypeError(f"{name}: {type(value).__name__} cannot be stored in a saved state")


def _float(value: float) -> Any:
    # JSON has no nan and no infinity; every other float survives it exactly.
    return value if math.isfinite(value) else [_FLOAT, str(value)]


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)
