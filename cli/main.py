"""The command line `streamcache <command>`: its commands, its exit codes, and errors as one line.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 problems found (verify, encode --strict, caption, curate), 4
another process uses the cache, 130 interrupted, by Ctrl-C or SIGTERM.
"""

import argparse
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from functools import partial

from .. import __version__
from ..errors import CacheBusy, CacheError, TrainError
from .output import add_output_option
from .parser import USAGE, Parser, UsageError, report_usage
from .signals import ending_as_interrupt

FAILED, BUSY, INTERRUPTED = 1, 4, 130
# The module and the summary of each command. A module is imported when its command is chosen: most need torch, which
# takes seconds to import and may be missing where only `run` is used.
COMMANDS = {
    "encode": ("encode", "Encode folders of images to a cache; only new or changed images and captions are encoded"),
    "train": ("train", "Train a LoRA on a cache"),
    "sweep": ("jobs.sweep", "Train every combination of some settings on one cache, or search for the best ones"),
    "queue": ("jobs.queue", "Add trainings to a queue, list them, or cancel them"),
    "worker": ("jobs.worker", "Train the jobs of a queue in order; a job whose worker was killed goes on"),
    "grid": ("grid", "Draw test images of LoRAs: prompts in rows; LoRAs, steps of a run and strengths in columns"),
    "recipe": ("recipe", "List the recipes for training, and show what one sets and why"),
    "info": ("info", "Show a cache's buckets, captions, sizes, sharing, and how it was made"),
    "caption": ("curate", "Edit the caption files of a folder: find and replace, tags, or captions from a file"),
    "curate": ("curate", "Exclude or repeat single images of a folder, list them, and find images that look alike"),
    "verify": ("upkeep", "Read a whole cache and list what is damaged or missing"),
    "clean": ("upkeep", "List what can be removed from a cache's folder; with --apply, remove it"),
    "compact": ("upkeep", "Merge a cache's small shards and drop tensors that nothing refers to"),
    "merge": ("upkeep", "Merge several caches into a new one; shared entries are stored once, nothing is encoded"),
    "export": (
        "upkeep",
        "Copy a cache's current samples to a new folder, or write them for webdataset, parquet or Hugging Face",
    ),
    "import": ("upkeep", "Import such an export, or a cache of another trainer: kohya, musubi, OneTrainer and others"),
    "push": ("remote.travel", "Bring a cache to another place; only what is missing there is sent"),
    "pull": ("remote.travel", "Bring a cache from another place to a folder; only what is missing is fetched"),
    "sync": ("remote.travel", "Bring the newer one of two places to the other; refused if both have changed"),
    "convert": (
        "upkeep",
        "Import a dataset written by ComfyUI's Save Training Dataset (pickle shards, or the skeletons of #14599)",
    ),
    "lora": ("lora", "Show, resize, merge, average and convert LoRA files"),
    "run": ("remote.run", "Run a workflow, saved in ComfyUI with Export (API), on a ComfyUI server"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Wrong usage raises SystemExit(2), as argparse does."""
    return execute(parse(arguments))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of one command, whose module is imported for it."""
    _replace_unprintable_characters()
    args = build_parser().parse_args(arguments)
    args.arguments = list(sys.argv[1:] if arguments is None else arguments)
    return args


def execute(args: argparse.Namespace) -> int:
    code = _execute(args)
    if "RANK" in os.environ:
        from .jobs import note_code

        return note_code(code)
    return code


def _execute(args: argparse.Namespace) -> int:
    try:
        with ending_as_interrupt():
            return args.run(args)
    except UsageError as error:
        return _refuse(args, error, USAGE)
    except CacheBusy as error:
        return _refuse(args, error, BUSY)
    except BrokenPipeError:
        return _stop_printing()
    except (CacheError, TrainError, OSError) as error:
        return _refuse(args, error, FAILED)
    except MemoryError:
        return _refuse(args, CacheError("out of memory; lower the batch size or the resolution"), FAILED)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def build_parser() -> Parser:
    parser = Parser("streamcache", description="Encode image datasets once and train LoRAs on them.")
    parser.add_argument(
        "--version", action="version", version=f"streamcache {__version__}", help="Show the version and exit"
    )
    subparsers = parser.add_subparsers(title="commands", metavar="command", required=True)
    for command, (module, summary) in COMMANDS.items():
        add_flags = partial(_add_flags, command, module)
        subparsers.add_parser(command, help=summary, description=f"{summary}.", add_flags=add_flags)
    return parser


def _add_flags(command: str, module: str, parser: Parser) -> None:
    getattr(importlib.import_module(f".{module}", __package__), f"add_{command}_flags")(parser)
    add_output_option(parser)


def _refuse(args: argparse.Namespace, error: Exception, code: int) -> int:
    message = " ".join(str(error).split())
    if code == USAGE:
        report_usage(f"streamcache {args.arguments[0]}", message)
    else:
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
