"""Saved states: everything that a run needs to resume, in one safetensors file that is replaced atomically.

The file contains tensors and a JSON tree, no pickle, so loading it runs no code.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from ...dataset_cache import Dataset, byte_count, replace_file
from ...errors import TrainError
from ..changes import FIXED_SETTINGS, differences
from ..config import TrainConfig
from ..objective import RULES
from .run_files import list_names, may_be_file, open_run_file

log = logging.getLogger("streamcache")

FORMAT = "streamcache-state-1"
_GLOB = "step-*.safetensors"
# The metadata of the file. States of version 0.2 and earlier have no checksum.
_FORMAT, _STATE, _CHECKSUM = "format", "state", "checksum"
# In the JSON tree a container is a list whose first item names its kind; a plain value stands for itself.
_TENSOR, _DICT, _LIST, _TUPLE, _FLOAT = "tensor", "dict", "list", "tuple", "float"
# What Python raises if the JSON tree is not what was written. Other errors, such as those of a failed allocation, say
# nothing about the file.
_INVALID = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
_OTHER_VERSION = "resume with the version that saved it, or move the file away to resume from the state before it"


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
    rules: int = 1  # the version of the training rules that the run began with; states of version 0.2 do not have it


class DamagedState(TrainError):
    """The content of a state's file is not what was saved."""


class StateFolder:
    """The saved states of a run; only the latest few are kept."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.keep = path, keep
        self._damaged: list[Path] = []  # newer than the state that the run resumed from

    def save(self, state: SavedState) -> Path:
        """Write a state, then delete the oldest ones. If writing fails, all earlier states stay."""
        content = _encode(state)
        path = self.path / f"step-{state.step:08}.safetensors"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        except OSError as error:
            raise TrainError(self._failed(path, error)) from error
        # Damaged states have later steps: if they counted among the latest, they would push out intact ones.
        self._damaged = [old for old in self._damaged if old != path and not _rename_damaged(old)]
        self._remove_old()
        log.info("Saved the state of step %d (%s)", state.step, byte_count(len(content)))
        return path

    def files(self) -> list[Path]:
        """Paths of the states, oldest first. Raises TrainError if they cannot be listed now."""
        names = sorted(fnmatch.filter(list_names(self.path), _GLOB), key=lambda name: (len(name), name))
        return [path for path in (self.path / name for name in names) if may_be_file(path)]

    def latest(self) -> SavedState | None:
        """The newest intact state; damaged ones are logged and skipped.

        One that cannot be read now or is of another version is an error: the run would lose the steps since the one
        before it.
        """
        damaged, self._damaged = None, []
        for path in reversed(self.files()):
            try:
                return read_state(path)
            except DamagedState as error:
                damaged = error
                self._damaged.append(path)
                log.warning("%s; trying the state before it", error)
        if damaged is not None:
            raise damaged
        return None

    def _remove_old(self) -> None:
        """Delete all but the latest states. One that stays does no harm: the next save tries again."""
        try:
            for old in [old for old in self.files() if old not in self._damaged][: -self.keep]:
                old.unlink(missing_ok=True)
        except (OSError, TrainError) as error:
            log.warning("Old states of the run could not be removed: %s", error)

    def _failed(self, path: Path, error: OSError) -> str:
        return f"{path}: could not be saved ({error.strerror}); {self._kept()}. Free disk space, then resume"

    def _kept(self) -> str:
        try:
            last = self.files()
        except TrainError:
            return "earlier states cannot be listed now"
        return f"the last saved state is {last[-1].name}" if last else "no earlier state exists"


def read_state(path: Path) -> SavedState:
    """Read a state from its file and verify its checksum."""
    file = open_run_file(path)
    if file is None or not file.size:
        found = "it is missing or not a file" if file is None else "the file is empty"
        raise DamagedState(f"{path}: cannot be read as a saved state ({found})")
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is not iterable
    except (OSError, MemoryError, RuntimeError) as error:  # torch reports a failed allocation as RuntimeError
        raise TrainError(f"{path}: cannot be read now ({_reason(error)}); try again") from None
    except (safetensors.SafetensorError, *_INVALID) as error:
        raise DamagedState(f"{path}: cannot be read as a saved state ({error})") from None
    found = metadata.get(_FORMAT)
    if found is None:
        raise DamagedState(f"{path}: cannot be read as a saved state (its format is missing)")
    if found != FORMAT:
        raise TrainError(f'{path}: format "{found}" is not "{FORMAT}"; {_OTHER_VERSION}')
    if metadata.get(_CHECKSUM) != _checksum(metadata.get(_STATE, ""), tensors) and set(metadata) != {_FORMAT, _STATE}:
        raise DamagedState(f"{path}: damaged, the content does not match its checksum")
    try:
        return _decode(metadata[_STATE], tensors)
    except MemoryError as error:
        raise TrainError(f"{path}: cannot be read now ({_reason(error)}); try again") from None
    except _INVALID as error:
        if _CHECKSUM in metadata:  # it is what was saved
            raise TrainError(f"{path}: saved by another version ({_reason(error)}); {_OTHER_VERSION}") from None
        raise DamagedState(f"{path}: cannot be read as a saved state ({_reason(error)})") from None


def check_origin(state: SavedState, dataset: Dataset | None, config: TrainConfig) -> list[str]:
    """Refuse to resume with a changed dataset or settings, unless `accept_changes` is set and the state allows it.

    Returns the accepted changes. Without a dataset, which is not encoded yet, only the settings are compared.
    """
    if state.rules > RULES:
        raise TrainError(
            f"the run began with a newer version of StreamCache (rules {state.rules}); resume with that one"
        )
    changes = differences(state.origin.config, config)
    settings = {*FIXED_SETTINGS, *_grouping(state)}
    fixed = [change for change in changes if change.partition(":")[0] in settings]
    if fixed:
        raise TrainError(
            f"the run was at step {state.step} with other settings: {'; '.join(fixed)}. This cannot change in a run: "
            'set it back, or mode = "new" to start another run, with the trained LoRA as start_from to keep its weights'
        )
    if dataset is not None and state.origin.dataset != dataset.id:
        changes.insert(0, f"dataset: was {state.origin.dataset}, is {dataset.id}")
    elif dataset is not None and state.origin.generation != dataset.generation:
        changes.insert(0, f"dataset: content was {state.origin.generation[:12]}, is {dataset.generation[:12]}")
    if changes and not config.accept_changes:
        raise TrainError(
            f"the run was at step {state.step} with other inputs: {'; '.join(changes)}. Set them back, or "
            'accept_changes = true to resume with the new ones, or mode = "overwrite" to start again'
        )
    for change in changes:
        log.warning("Resuming with a change: %s", change)
    return changes


def _grouping(state: SavedState) -> set[str]:
    """Settings that decide which group a parameter is in, if only its place in a group identifies it (early states)."""
    if all("names" in group for group in state.optimizer["param_groups"]):
        return set()
    return {"group_rates", "learning_rate"} if state.origin.config.get("group_rates") else {"group_rates"}


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
    text = json.dumps(tree, allow_nan=False)
    return safetensors.torch.save(tensors, {_FORMAT: FORMAT, _STATE: text, _CHECKSUM: _checksum(text, tensors)})


def _decode(text: str, tensors: dict[str, Tensor]) -> SavedState:
    """Raises one of `_INVALID` if a field is missing or has another type."""
    fields = unpack(json.loads(text), tensors)
    unknown = fields.keys() - SavedState.__dataclass_fields__
    if unknown:
        raise ValueError(f"unknown field: {', '.join(sorted(map(str, unknown)))}")
    state = SavedState(**{**fields, "origin": StateOrigin(**fields["origin"])})
    counts = (state.step, state.position, state.epoch_length - 1, state.rules - 1)
    parts = (state.origin.config, state.adapter, state.optimizer, state.carried, state.ema, state.scaler)
    if any(type(count) is not int or count < 0 for count in counts) or any(type(part) is not dict for part in parts):
        raise ValueError("a field has an unexpected value")
    return state


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"


def _rename_damaged(path: Path) -> bool:
    """Rename a damaged state, so that it does not count as one. Returns whether its name is free now."""
    with contextlib.suppress(OSError):
        path.replace(path.with_name(path.name + ".damaged"))
    return not path.exists()


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = xxhash.xxh3_128(text.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode("utf-8", "surrogatepass"))
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
