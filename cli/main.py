"""The command line `streamcache <command>`: its parser, its exit codes, and errors as one line.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 problems found (verify, encode --strict), 4 another process
uses the cache, 130 interrupted.
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..dataset_cache import CacheBusy, CacheError, SettingError
from ..lora_train import TrainError
from . import encode, info, run, train, upkeep

FAILED, BUSY, INTERRUPTED = 1, 4, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Wrong usage raises SystemExit(2), as argparse does."""
    _replace_unprintable_characters()
    args = build_parser().parse_args(arguments)
    args.arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return args.run(args)
    except CacheBusy as error:
        return _refuse(args, error, BUSY)
    except BrokenPipeError:
        return _stop_printing()
    except (CacheError, SettingError, TrainError, OSError) as error:
        return _refuse(args, error, FAILED)
    except MemoryError:
        return _refuse(args, CacheError("out of memory; lower the batch size or the resolution"), FAILED)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("streamcache", description="Encode image datasets once and train LoRAs on them.")
    parser.add_argument("--version", action="version", version=f"streamcache {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="command", required=True)
    for command in (encode, train, info):
        command.add_parser(subparsers).set_defaults(run=command.run)
    upkeep.add_parsers(subparsers)
    run.add_parser(subparsers).set_defaults(run=run.run)
    return parser


def _refuse(args: argparse.Namespace, error: Exception, code: int) -> int:
    message = " ".join(str(error).split())
    print(f"streamcache: {message}", file=sys.stderr)
    if getattr(args, "json", False):
        print(json.dumps({"error": message}))
    return code


def _stop_printing() -> int:
    """Silence stdout after its reader closed it (`| head`): the interpreter would complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _replace_unprintable_characters() -> None:
    """File names and captions can contain characters that the terminal lacks: print a question mark, do not fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # notebooks replace the streams
            stream.reconfigure(errors="replace")
