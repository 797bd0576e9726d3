"""The command line: `streamcache <command>`. Every command is a file of its own; errors become one line and a code.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 problems found (verify), 4 somebody else holds the dataset,
130 interrupted.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from .. import __version__
from ..dataset_cache import CacheBusy, CacheError, SettingError
from ..lora_train import TrainError
from . import clean, compact, convert, encode, export, info, merge, run, train, upkeep

COMMANDS = (encode, train, info, upkeep, clean, compact, merge, export, convert, run)
FAILED, BUSY, INTERRUPTED = 1, 4, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Wrong usage leaves by SystemExit(2), as argparse does it."""
    _print_any_character()
    args = build_parser().parse_args(arguments)
    args.arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return args.run(args)
    except CacheBusy as error:
        return _refuse(args, error, BUSY)
    except (CacheError, SettingError, TrainError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            return _stop_printing()
        return _refuse(args, error, FAILED)
    except MemoryError:
        return _refuse(args, CacheError("memory ran out; lower the batch size or the resolution"), FAILED)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("streamcache", description="Encoded image datasets, and LoRAs trained on them.")
    parser.add_argument("--version", action="version", version=f"streamcache {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="command", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers).set_defaults(run=command.run)
    return parser


def _refuse(args: argparse.Namespace, error: Exception, code: int) -> int:
    message = " ".join(str(error).split())
    print(f"streamcache: {message}", file=sys.stderr)
    if getattr(args, "json", False):
        print(json.dumps({"error": message}))
    return code


def _stop_printing() -> int:
    """The reader of our output went away (`| head`); the interpreter must not complain about it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _print_any_character() -> None:
    """Names and captions hold any character; a terminal that lacks one shows a question mark instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # replaced by something that is no text file, as in notebooks
            stream.reconfigure(errors="replace")
