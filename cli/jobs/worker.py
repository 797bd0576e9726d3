"""`streamcache worker`: trains the jobs of a queue in order, one at a time, each in a process of its own."""

import argparse
import os
import re
import socket
import sys
import time
from pathlib import Path

from ...errors import TrainError
from ...lora_train import CANCELLED, DONE, FAILED, Claim, Held, JobQueue, format_seconds, hold
from ...quantity import plural
from ..host import VISIBLE
from ..output import show
from ..parser import Parser, UsageError
from ..turn import wait_for_turn
from .child import Outcome, train_in_child
from .queue import add_queue_option

_IDLE_SECONDS = 1.0
_DEVICE = re.compile(r"\d+|(?:GPU|MIG)-[\w/-]+")  # as CUDA names them


def add_worker_flags(parser: Parser) -> None:
    parser.set_defaults(run=run)
    add_queue_option(parser)
    text = "GPU that this worker trains on, as in CUDA_VISIBLE_DEVICES; each has one worker"
    parser.add_argument("--device", metavar="N", help=text)
    parser.add_argument("--once", action="store_true", help="End when no job waits, instead of waiting for the next")


def run(args: argparse.Namespace) -> int:
    if args.device and not _DEVICE.fullmatch(args.device):
        raise UsageError(f"--device {args.device}: expected the number of a GPU, such as 0")
    queue = JobQueue(args.queue.absolute())
    if args.once and not queue.folder.is_dir():
        raise TrainError(f"{queue.folder}: no such folder; give that of a queue with --queue")
    new = "" if queue.folder.is_dir() else ", which was made just now"
    queue.folder.mkdir(parents=True, exist_ok=True)
    host, device = _plain(socket.gethostname()), _plain(args.device or os.environ.get(VISIBLE[0]) or "0")
    place = queue.folder / f".worker-{host}-{device}"
    try:
        with hold(place, f"device {device} of {host}"):
            worker = _Worker(args, queue, f"{host} {device}, process {os.getpid()}")
            return worker.work(f"Waiting for jobs in {queue.folder}{new}")
    except Held as error:
        message = f"{queue.folder}: this device has a worker already{error}; give another device with --device"
        raise TrainError(message) from None


class _Worker:
    """One worker, which counts how its jobs end."""

    def __init__(self, args: argparse.Namespace, queue: JobQueue, name: str) -> None:
        self._args, self._queue, self._name = args, queue, name
        self._ended = {DONE: 0, FAILED: 0, CANCELLED: 0}
        self._environment = dict(os.environ)
        if args.device:
            self._environment |= dict.fromkeys((*VISIBLE, "ASCEND_RT_VISIBLE_DEVICES"), args.device)

    def work(self, greeting: str) -> int:
        """Train what waits. Without --once this ends only by Ctrl-C or SIGTERM."""
        self._say(greeting if not self._args.once else "")
        while True:
            with self._queue.claim() as claim:
                if claim is not None:
                    self._train(claim)
                    continue
            if self._args.once:
                break
            time.sleep(_IDLE_SECONDS)
        counts = ", ".join(f"{count} {status}" for status, count in self._ended.items() if count)
        show(self._args, self._ended, [f"{plural(sum(self._ended.values()), 'job')}{f': {counts}' if counts else ''}"])
        return 1 if self._ended[FAILED] else 0

    def _train(self, claim: Claim) -> None:
        try:
            claim = claim.start(self._name)
        except TrainError as error:
            self._end(claim, FAILED, problem=str(error))
            return
        job = claim.job
        try:
            if not wait_for_turn(claim.turn, lambda: claim.cancelled):
                self._end(claim, CANCELLED)
                return
            again = claim.begun
            self._say(f"Job {claim.number}: {job.name}{' goes on' if again else ''}")
            settings = {**job.settings, "name": job.name, **({"mode": "resume"} if again else {})}
            arguments = [*job.arguments, f"--out={job.out}", f"--runs={job.runs}"]
            outcome = train_in_child(
                arguments, settings, claim.turn, Path(job.folder), self._environment, lambda: claim.cancelled
            )
        except KeyboardInterrupt:
            claim.put_back()
            self._say(f"Job {claim.number}: goes on with the next worker")
            raise
        except OSError as error:
            outcome = Outcome(problem=f"{job.folder}: cannot be entered ({error.strerror}); add the job again")
        self._record(claim, outcome)

    def _record(self, claim: Claim, outcome: Outcome) -> None:
        if outcome.crashed:
            self._say(f"Job {claim.number}: {outcome.problem}")
            claim.put_back(outcome.problem)  # `start` counts how often
        elif outcome.problem:
            self._end(claim, FAILED, problem=outcome.problem)
        elif not outcome.stopped:
            self._end(claim, DONE, result=dict(outcome.result), problem="")
        elif claim.cancelled:
            self._end(claim, CANCELLED, result=dict(outcome.result))
        else:
            claim.put_back()

    def _end(self, claim: Claim, status: str, **facts: object) -> None:
        claim.end(status, **facts)
        self._ended[status] += 1
        seconds = format_seconds(time.time() - claim.job.started) if claim.job.started else ""
        problem = facts.get("problem")
        self._say(
            f"Job {claim.number}: {status}{f' after {seconds}' if seconds else ''}{f': {problem}' * bool(problem)}"
        )

    def _say(self, words: str) -> None:
        if words and not self._args.json:
            print(words, file=sys.stderr, flush=True)


def _plain(text: str) -> str:
    """A text as part of a file name."""
    return "".join(c if c.isalnum() else "-" for c in text)
