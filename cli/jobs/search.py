"""A search for good settings with optuna. Its state is in the sweep's folder, so that a killed search goes on."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...dataset_cache import replace_file
from ...errors import TrainError
from .combinations import Axis, Combination, combination

_JOURNAL = "search.journal"


@dataclass(frozen=True)
class Trial:
    """One run that the search has chosen."""

    number: int
    run: Combination
    open: bool = False  # it was begun and has no result yet
    failed: bool = False


class Search:
    """The trials of one search: of these values, settings and dataset. Only one process uses it at a time."""

    def __init__(self, folder: Path, stem: str, axes: Sequence[Axis], facts: Mapping[str, Any], seed: int) -> None:
        optuna = import_optuna()
        self._optuna, self._stem, self._axes, self._seed = optuna, stem, axes, seed
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        folder.mkdir(parents=True, exist_ok=True)
        journal = folder / _JOURNAL
        _mend(journal)
        files = importlib.import_module("optuna.storages.journal")
        backend = files.JournalFileBackend(str(journal), lock_obj=files.JournalFileOpenLock(str(journal)))
        # Other values, settings or another dataset are another search.
        described = json.dumps([[repr(axis) for axis in axes], facts], sort_keys=True, default=str)
        name = blake2b(described.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        storage = optuna.storages.JournalStorage(backend)
        self._study = optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)

    def trials(self) -> list[Trial]:
        """The trials so far. One that a kill left without all of its values does not count."""
        states = self._optuna.trial.TrialState
        return [
            Trial(one.number, self._combination(one.params), one.state == states.RUNNING, one.state == states.FAIL)
            for one in self._study.get_trials(deepcopy=False)
            if len(one.params) == len(self._axes)
        ]

    def choose(self) -> Trial:
        """The next trial, chosen by the results so far. After a kill it is the same."""
        seed = self._seed + len(self._study.get_trials(deepcopy=False))
        self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
        chosen = self._study.ask({axis.name: self._distribution(axis) for axis in self._axes})
        return Trial(chosen.number, self._combination(chosen.params), open=True)

    def tell(self, trial: Trial, validation: float | None) -> None:
        """The validation loss that a trial has reached; None if it failed."""
        if validation is None:
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial.number, validation)

    def _combination(self, params: Mapping[str, Any]) -> Combination:
        return combination(self._stem, {axis.name: _value(axis, params[axis.name]) for axis in self._axes})

    def _distribution(self, axis: Axis) -> Any:
        kinds, limits = self._optuna.distributions, axis.range
        if limits is None:
            return kinds.CategoricalDistribution(tuple(range(len(axis.values))))  # values may be lists
        if axis.setting.type is int:
            return kinds.IntDistribution(int(limits.low), int(limits.high), log=limits.log)
        return kinds.FloatDistribution(limits.low, limits.high, log=limits.log)


def import_optuna() -> Any:
    """The package, or a TrainError with the command that installs it."""
    try:
        return importlib.import_module("optuna")
    except ImportError:
        raise TrainError('--search: needs optuna; run "pip install optuna", or give lists of values only') from None


def _value(axis: Axis, chosen: Any) -> Any:
    if axis.range is None:
        return axis.values[chosen]
    return min(max(axis.round(chosen), axis.range.low), axis.range.high)


def _mend(journal: Path) -> None:
    """Remove what a killed process left: a line that is not finished, and its lock."""
    with suppress(FileNotFoundError):
        content = journal.read_bytes()
        if not content.endswith(b"\n"):
            replace_file(journal, content[: content.rfind(b"\n") + 1])
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
