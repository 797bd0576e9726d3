"""`streamcache train --ranks N`: the same command in N processes, which torchrun starts, restarts and ends."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..parser import USAGE, Parser, UsageError
from .child import PACK, START

# Files of a folder of its own, which connect the processes with this one. Torchrun has no exit codes of its own, and
# kills processes that save for longer than 30 seconds if it is interrupted itself.
_FOLDER, _STOP, _CODE = "STREAMCACHE_RANKS", "stop", "code"


def add_ranks_flag(parser: Parser) -> None:
    text = "Train with N processes on this machine, each on rows of its own; torchrun starts them (see docs/scaling.md)"
    parser.add_argument("--ranks", type=int, metavar="N", help=text)


def start_ranks(args: argparse.Namespace) -> int | None:
    """Run this command in its ranks and return their exit code; None if it should run in this process."""
    if args.ranks is None or _FOLDER in os.environ:
        return None
    if args.ranks < 1:
        raise UsageError(f"--ranks {args.ranks}: expected 1 or more")
    if args.turn:
        raise UsageError("--ranks: not for a sweep or a queue, which start one process for each training")
    if "WORLD_SIZE" in os.environ:
        raise UsageError("--ranks: this process is one of torchrun's already; leave the flag out")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks), "--no-python"]
    with tempfile.TemporaryDirectory(prefix="streamcache-ranks-") as folder:
        place = Path(folder)
        process = subprocess.Popen(
            [sys.executable, *launcher, sys.executable, "-c", START, str(PACK), *args.arguments],
            env={"OMP_NUM_THREADS": str(_threads(args.ranks)), **os.environ, _FOLDER: folder},
            start_new_session=os.name != "nt",  # Ctrl-C is for this process, which passes it on once
        )
        code = _wait(process, place)
        with suppress(OSError, ValueError):
            return int((place / _CODE).read_text())
        return code


def _wait(process: subprocess.Popen, folder: Path) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # also SIGTERM and the like
            if (folder / _STOP).exists():
                process.terminate()
            else:
                words = "\nStopping all ranks after this step and saving. Press Ctrl-C again to stop at once."
                print(words, file=sys.stderr)
                (folder / _STOP).touch()


def _threads(ranks: int) -> int:
    return max((os.cpu_count() or 1) // ranks, 1)


def asked_to_stop() -> Callable[[], bool]:
    """Whether the process that started all ranks wants them to stop."""
    folder = os.environ.get(_FOLDER)
    return (lambda: False) if folder is None else (Path(folder) / _STOP).exists


def note_code(code: int) -> int:
    """Rank 0 leaves its exit code for the process that started all; returns that for torchrun.

    It is 0 if the ranks have ended together, whatever the reason: else torchrun would hide their error behind its own.
    """
    folder = os.environ.get(_FOLDER)
    if folder is None or code == USAGE:
        return code
    if os.environ.get("RANK") == "0":
        (Path(folder) / _CODE).write_text(str(code))
    return 0
