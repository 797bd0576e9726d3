"""`streamcache sweep`: trains every combination of some settings on one cache, or searches them by validation loss.

The same command continues a sweep that was cut: what is done is skipped, what was cut is resumed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...dataset_cache import open_cache, place_of
from ...errors import TrainError
from ...lora_train import (
    RENAMED_SETTINGS,
    TRAIN_SETTINGS,
    Held,
    can_begin,
    differences,
    hold,
    load_config,
    read_run_json,
    read_toml,
)
from ...quantity import plural
from ..output import add_output_option, show, table
from ..parser import Parser, UsageError, flag_of, usage_errors
from ..train import add_train_flags, check_arguments, describe_model, is_setting, parse_settings, runs_folder
from ..turn import wait_for_turn
from .child import train_in_child
from .combinations import Axis, Combination, check, combine, parse_axes
from .results import RunResult, describe_results, read_result, sort_results, write_results
from .search import Search, Trial, import_optuna

FAILED, INTERRUPTED = 1, 130
DONE, CUT, NEW = "done", "to resume", "new"
# Not flags of a run: its own settings, and what the sweep decides.
_OWN = {"out", "runs", "file", "set", "search", "config", "settings", "dry_run", "resume", "json", "turn"}
_MOST_CHECKED = 1000  # combinations of the ends of ranges


@dataclass(frozen=True)
class Sweep:
    """What all runs of a sweep have in common."""

    arguments: tuple[str, ...]  # of `streamcache train`, without settings
    base: Mapping[str, Any]  # settings
    out: Path
    runs: Path
    dataset: str
    origin: tuple[str, str]  # id and generation of the dataset
    model: Mapping[str, Any]  # its name, and ComfyUI's settings

    @property
    def folder(self) -> Path:
        """Where the results are."""
        return self.out.with_name(f"{self.out.stem}-sweep")

    @property
    def turn(self) -> Path:
        return self.runs / ".sweep.turn"

    def lora(self, one: Combination) -> Path:
        return self.out.with_name(f"{one.name}.safetensors")

    def settings(self, one: Combination, mode: str) -> dict[str, Any]:
        return {**self.base, **one.settings, "name": one.name, "mode": mode}


def add_sweep_flags(parser: Parser) -> None:
    add_train_flags(parser)
    parser.set_defaults(run=run)
    parser.usage = "%(prog)s [TOML] --set NAME=VALUE,VALUE… [flags of streamcache train]"
    for action in parser._actions:
        action.required = False  # the file may have them
        if action.dest == "dry_run":
            action.help = "List the runs, and train nothing"
    text = "Settings, and flags of streamcache train such as dataset, model and out; flags override it"
    parser.add_argument("file", nargs="?", metavar="TOML", help=text)
    text = (
        "Values of a setting, such as rank=8,16,32; repeat it for others: every combination is trained. "
        "With --search also a range, such as learning_rate=1e-5..1e-3:log"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE,…", help=text)
    text = "Train N combinations, each chosen by the validation losses of those before it; needs optuna"
    parser.add_argument("--search", type=int, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    args = read_file(args)
    sweep, axes = prepare(args)
    chosen = []
    if args.search is None:
        chosen = combine(sweep.out.stem, axes, sweep.base)
    else:
        check_search(args.search, sweep, axes)
    if args.dry_run:
        return _show_plans(args, [(one, plan_run(sweep, one)) for one in chosen])
    sweep.runs.mkdir(parents=True, exist_ok=True)
    try:
        with hold(sweep.runs / ".sweep", f"{sweep.out.stem}"):
            wait_for_turn(sweep.turn, words="Waiting for the training of an earlier sweep to stop")
            if args.search is not None:
                return _Runs(args, sweep).search(axes)
            return _Runs(args, sweep).train(chosen)
    except Held as error:
        message = f"{sweep.runs}: another sweep is running here{error}; wait for it, or give another folder with --runs"
        raise TrainError(message) from None


def read_file(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments with those of the file. Flags win."""
    if args.file is None:
        return args
    parser = Parser("streamcache sweep")
    add_sweep_flags(parser)
    add_output_option(parser)
    known = {action.dest: action for action in parser._actions if not is_setting(action.dest)}
    flags, settings = [], {}
    with usage_errors():
        values = read_toml(args.file)
    for name, value in values.items():
        action = known.get(name.replace("-", "_")) or known.get(f"host_{name}")
        if (
            action is None
            or name in TRAIN_SETTINGS
            or name in RENAMED_SETTINGS
            or action.dest in _OWN - {"out", "runs"}
        ):
            settings[name] = value
        elif isinstance(action, argparse._AppendAction):
            many = value if isinstance(value, list) else [value]
            given = getattr(args, action.dest)
            flags += [] if given else [f"{flag_of(name)}={one}" for one in many]
        elif isinstance(value, list):
            raise UsageError(f"{args.file}: {name} = {json.dumps(value, default=str)}: expected one value")
        elif action.nargs == 0:
            flags += [flag_of(name)] if value else []
        else:
            flags += [f"{flag_of(name)}={str(value).lower() if isinstance(value, bool) else value}"]
    with usage_errors():
        load_config(settings, str(args.file), notice=lambda words: None)  # so that its errors name the file
    merged = parser.parse_args([*flags, *args.arguments[1:]])
    given = parse_settings(merged.settings) if merged.settings else {}
    merged.settings = json.dumps({**settings, **given})
    merged.arguments = args.arguments
    return merged


def prepare(args: argparse.Namespace) -> tuple[Sweep, list[Axis]]:
    """What the runs have in common and what they vary, after every check that needs no model."""
    for name in ("dataset", "model", "out"):
        if getattr(args, name) is None:
            raise UsageError(f"--{name} is missing; give it here or in the TOML file")
    axes = parse_axes(args.set)
    if not axes:
        raise UsageError("nothing varies; add --set, for example --set rank=8,16")
    config = check_arguments(args, writes=False)
    if config.mode == "resume":
        raise UsageError('mode = "resume": a sweep resumes by itself; start the same command again')
    if config.name:
        raise UsageError(
            f'name = "{config.name}": the runs of a sweep are named after --out and what varies; remove it'
        )
    parser = Parser()
    add_train_flags(parser)
    arguments = parser.given(args, lambda name: is_setting(name) or name in _OWN)
    dataset = open_cache(place_of(args.dataset))
    sweep = Sweep(
        arguments=tuple(arguments),
        base=config.to_dict(),
        out=args.out,
        runs=runs_folder(args),
        dataset=args.dataset,
        origin=(dataset.id, dataset.generation),
        model=describe_model(args),
    )
    return sweep, axes


def plan_run(sweep: Sweep, one: Combination) -> str:
    """Whether a run is done, to be resumed, or new. Refused if it is there with other settings or another dataset."""
    folder, overwrite = sweep.runs / one.name, sweep.base["mode"] == "overwrite"
    if can_begin(folder):
        if sweep.lora(one).exists() and not overwrite:
            raise TrainError(f"{sweep.lora(one)}: exists; move it away, give another --out, or --mode overwrite")
        return NEW
    described = read_run_json(folder)
    changes = _changes(described, load_config(sweep.settings(one, "new")), sweep)
    if changes and overwrite:
        return NEW
    if changes:
        remedy = "give another --out, or --mode overwrite to train it again"
        raise TrainError(f"{folder}: was trained with something else ({changes[0]}); {remedy}")
    return DONE if described.get("status") == "done" and sweep.lora(one).is_file() else CUT


def check_search(count: int, sweep: Sweep, axes: Sequence[Axis]) -> None:
    """Refuse a search before it starts: without optuna or a validation, or over values that do not fit together."""
    import_optuna()
    if count < 1:
        raise UsageError(f"--search {count}: expected a whole number of at least 1")
    if not sweep.base["validation_share"]:
        raise UsageError("--search: chooses by validation loss; set validation_share, for example to 0.1")
    ends = [replace(axis, values=_ends(axis), range=None) for axis in axes]
    for values in itertools.islice(itertools.product(*(axis.values for axis in ends)), _MOST_CHECKED):
        settings = dict(zip((axis.name for axis in axes), values))
        check(Combination(sweep.out.stem, settings), sweep.base)


class _Runs:
    """The runs of a sweep, one after another, and their results so far."""

    def __init__(self, args: argparse.Namespace, sweep: Sweep) -> None:
        self._args, self._sweep = args, sweep
        self._results: dict[str, RunResult] = {}
        self._stopped = False

    def train(self, chosen: Sequence[Combination]) -> int:
        plans = [plan_run(self._sweep, one) for one in chosen]
        counts = ", ".join(f"{plans.count(plan)} {plan}" for plan in (DONE, CUT, NEW) if plan in plans)
        self._say(f"Sweep of {plural(len(chosen), 'run')}: {counts}")
        for number, one in enumerate(chosen, 1):
            self._train(one, f"{number} of {len(chosen)}")
            if self._stopped:
                break
        return self._end()

    def search(self, axes: Sequence[Axis]) -> int:
        sweep, args = self._sweep, self._args
        facts = {"settings": {**sweep.base, "mode": ""}, "dataset": sweep.origin, "model": sweep.model}
        search = Search(sweep.folder, sweep.out.stem, axes, facts, sweep.base["seed"])
        trials = search.trials()
        self._say(f"Search of {plural(args.search, 'run')}: {sum(not trial.open for trial in trials)} done")
        for trial in trials:
            if not trial.open:
                folder, status = sweep.runs / trial.run.name, "failed" if trial.failed else DONE
                problem = str(read_run_json(folder).get("problem") or "") if trial.failed else ""
                self._keep(read_result(folder, trial.run, status, problem))
        waiting = [trial for trial in trials if trial.open]
        count = len(trials) - len(waiting)
        while count < args.search and not self._stopped:
            trial: Trial = waiting.pop(0) if waiting else search.choose()
            count += 1
            result = self._train(trial.run, f"{count} of {args.search}")
            if not self._stopped:
                search.tell(trial, result.validation if result.status == DONE else None)
        return self._end()

    def _train(self, one: Combination, place: str) -> RunResult:
        sweep = self._sweep
        dataset = open_cache(place_of(sweep.dataset))
        if (dataset.id, dataset.generation) != sweep.origin:
            raise TrainError(f"{sweep.dataset}: has changed since the sweep began; start the same command again")
        status, problem = DONE, ""
        try:
            check(one, sweep.base)
            plan = plan_run(sweep, one)
            if plan != DONE:
                self._say(f"{place}: {one.name} ({plan})")
                mode = "resume" if plan == CUT else str(sweep.base["mode"])
                arguments = [*sweep.arguments, f"--out={sweep.lora(one)}", f"--runs={sweep.runs}"]
                outcome = train_in_child(arguments, sweep.settings(one, mode), sweep.turn)
                self._stopped = outcome.stopped
                status = "stopped" if outcome.stopped else "failed" if outcome.problem else DONE
                problem = outcome.problem
        except KeyboardInterrupt:
            self._stopped, status = True, "stopped"
        except (TrainError, UsageError) as error:
            status, problem = "failed", str(error)
        return self._keep(read_result(sweep.runs / one.name, one, status, problem))

    def _keep(self, result: RunResult) -> RunResult:
        self._results[result.name] = result
        write_results(self._sweep.folder, sort_results(self._results.values()), self._sweep.runs)
        return result

    def _end(self) -> int:
        results = sort_results(self._results.values())
        lines = [*describe_results(results), f"Results: {self._sweep.folder}"]
        if self._stopped:
            lines.append("Stopped early; the same command goes on with what is left")
        show(self._args, {"runs": [vars(one) for one in results], "stopped": self._stopped}, lines)
        if self._stopped:
            return INTERRUPTED
        return FAILED if any(one.status != DONE for one in results) else 0

    def _say(self, words: str) -> None:
        if not self._args.json:
            print(words, file=sys.stderr, flush=True)


def _changes(described: Mapping[str, Any], config: Any, sweep: Sweep) -> list[str]:
    """What differs between a run and what it would be now."""
    old = described.get("config")
    if not isinstance(old, dict):
        return ["its settings are not known"]
    changes = differences(old, config)
    for name in ("steps", "epochs"):
        if old.get(name) != getattr(config, name) and not any(one.startswith(f"{name}:") for one in changes):
            changes.append(f"{name}: was {old.get(name)!r}, is {getattr(config, name)!r}")
    was, now = _flat(described), _flat(sweep.model)
    changes += [f"{name}: was {was[name]!r}, is {now[name]!r}" for name in now if was.get(name, now[name]) != now[name]]
    if (described.get("dataset_id"), described.get("dataset_generation")) != sweep.origin:
        changes.append("the dataset has changed")
    return changes


def _flat(described: Mapping[str, Any]) -> dict[str, Any]:
    """The model and ComfyUI's settings that run.json names; of earlier versions it names none."""
    host = described.get("host")
    model = {"model": described["model"]} if "model" in described else {}
    return {**model, **(host if isinstance(host, dict) else {})}


def _ends(axis: Axis) -> tuple[Any, ...]:
    return (axis.range.low, axis.range.high) if axis.range else axis.values


def _show_plans(args: argparse.Namespace, plans: Sequence[tuple[Combination, str]]) -> int:
    facts = [{"name": one.name, "settings": dict(one.settings), "state": plan} for one, plan in plans]
    lines = table([("run", "state"), *((one.name, plan) for one, plan in plans)]) if plans else []
    count = args.search if args.search is not None else sum(plan != DONE for _, plan in plans)
    show(args, {"count": count, "runs": facts}, [*lines, f"{plural(count, 'run')} to train; nothing was trained"])
    return 0
