"""`streamcache queue`: adds trainings to a folder of jobs, lists them and cancels them. Workers train them in order."""

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ...dataset_cache import CacheError, open_cache, place_of
from ...errors import TrainError
from ...lora_train import RUNNING, Job, JobQueue, check_run_name, read_curves, read_run_json
from ..output import add_output_option, show, table
from ..parser import Parser, UsageError, usage_errors
from ..train import add_train_flags, check_arguments, is_setting, run_name, runs_folder

_FOLDER = "queue"
# Not stored as flags: a job has these itself.
_OWN = {"out", "runs", "queue", "config", "settings", "dry_run", "resume", "json", "turn", "help"}


def add_queue_flags(parser: Parser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="action", required=True, help="What to do")
    for name, add_flags, about in (
        ("add", _add_add_flags, "Add a training, with the flags of streamcache train"),
        ("list", _add_list_flags, "List the jobs, in the order in which they are trained"),
        ("cancel", _add_cancel_flags, "Remove jobs that wait; a running one stops after its step and saves"),
    ):
        actions.add_parser(name, help=about, description=f"{about}.", add_flags=partial(_complete, add_flags))


def add_queue_option(parser: argparse.ArgumentParser) -> None:
    text = f"Folder of the queue [{_FOLDER}]"
    parser.add_argument("--queue", type=Path, default=Path(_FOLDER), metavar="FOLDER", help=text)


def add(args: argparse.Namespace) -> int:
    job = make_job(args)
    if args.dry_run:
        show(args, asdict(job), [f"{job.name} can be added; nothing was added"])
        return 0
    number, job = JobQueue(args.queue).add(job)
    show(args, {"number": number, **asdict(job)}, [f"Added job {number}, {job.name}, to {args.queue.absolute()}"])
    return 0


def list_jobs(args: argparse.Namespace) -> int:
    queue = JobQueue(args.queue)
    facts, rows, problems = [], [("job", "state", "run", "steps", "worker")], []
    for number in queue.numbers():
        try:
            job = queue.read(number)
        except (TrainError, CacheError) as error:
            problems.append(str(error))
            continue
        if job is None:  # it was removed a moment ago
            continue
        alone = job.status == RUNNING and not queue.is_claimed(number)
        state = "waiting" if alone else job.status
        facts.append({"number": number, **asdict(job), "status": state})
        rows.append((str(number), state, job.name, _steps(job), "" if alone else job.worker))
        problems += [f"job {number}: {job.problem}"] if job.problem else []
    lines = table(rows) if facts else [f"No jobs in {queue.folder.absolute()}"]
    show(args, {"jobs": facts, "problems": problems}, [*lines, *problems])
    return 0


def cancel(args: argparse.Namespace) -> int:
    queue, lines = JobQueue(args.queue), []
    removed = {number: queue.cancel(number) for number in args.numbers}
    for number, gone in removed.items():
        asked = f"Job {number} stops after its step and saves, when its worker has read this"
        left = queue.read(number) if gone else None
        ended = f"Cancelled job {number}; its run is {left.run}" if left else f"Removed job {number}"
        lines.append(ended if gone else asked)
    show(args, {"removed": [number for number, gone in removed.items() if gone]}, lines)
    return 0


def make_job(args: argparse.Namespace) -> Job:
    """The training of these arguments, checked now and not when its turn comes."""
    config = check_arguments(args)
    open_cache(place_of(args.dataset))
    _check_files({"start-from": config.start_from, "training-adapter": config.training_adapter,
                  "model": args.model if args.reference else ""})  # fmt: skip
    runs = runs_folder(args).absolute()
    name = run_name(config, args.out.stem, runs)
    with usage_errors():
        check_run_name(name, new=config.mode == "new")
    if config.mode == "resume" and not read_run_json(runs / name):
        raise UsageError(f'mode = "resume": {runs} has no run "{name}"; give the name of one, or leave out --resume')
    parser = Parser()
    add_train_flags(parser)
    # All of them, also those at their defaults: the worker gives --recipe again, and these win over it.
    settings = {key: value for key, value in config.to_dict().items() if key != "name"}
    return Job(
        name=name,
        out=str(args.out.absolute()),
        runs=str(runs),
        folder=os.getcwd(),
        arguments=tuple(parser.given(args, lambda dest: is_setting(dest) or dest in _OWN)),
        settings=settings,
    )


def _check_files(files: Mapping[str, str]) -> None:
    for flag, file in files.items():
        if file and not Path(file).is_file():
            raise UsageError(f"--{flag} {file}: no such file")


def _steps(job: Job) -> str:
    described = read_run_json(job.run) if job.started else {}
    losses = read_curves(job.run / "metrics.jsonl").losses if described else []
    return f"{losses[-1][0]:,} of {described.get('steps', 0):,}" if losses else ""


def _complete(add_flags: Callable[[Parser], None], parser: Parser) -> None:
    add_flags(parser)
    add_queue_option(parser)
    add_output_option(parser)
    for action in parser._actions:
        if action.dest == "json":
            action.default = argparse.SUPPRESS  # the option may also stand before the action


def _add_add_flags(parser: Parser) -> None:
    add_train_flags(parser)
    parser.set_defaults(run=add)
    parser.usage = "%(prog)s --dataset CACHE --model NAME --out FILE [flags of streamcache train]"
    for action in parser._actions:
        if action.dest == "dry_run":
            action.help = "Check the arguments, and add nothing"


def _add_list_flags(parser: Parser) -> None:
    parser.set_defaults(run=list_jobs)


def _add_cancel_flags(parser: Parser) -> None:
    parser.set_defaults(run=cancel)
    parser.add_argument("numbers", nargs="+", type=int, metavar="JOB", help="Numbers of jobs, as list shows them")
