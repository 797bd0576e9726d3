"""Runs the benchmarks: `python -m streamcache.bench [--quick] [--only GROUP …]`."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from .encoding import measure_encoding
from .host_training import measure_host_training
from .opening import measure_opening
from .reading import measure_reading, measure_repeated_captions
from .remote import measure_remote
from .rounds import QUICK, Settings
from .scanning import measure_scanning
from .steps import measure_steps
from .table import Figure, print_table, write_json
from .training import measure_training
from .writing import measure_sharing, measure_writing

RESULTS = Path(__file__).parent / "results"
GROUPS: dict[str, Callable[[Path, Settings], list[Figure]]] = {
    "reading": measure_reading,
    "repeated": measure_repeated_captions,
    "remote": measure_remote,
    "opening": measure_opening,
    "writing": measure_writing,
    "sharing": measure_sharing,
    "scanning": measure_scanning,
    "encoding": measure_encoding,
    "training": measure_training,
    "steps": measure_steps,
    "host": measure_host_training,
}


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    settings = QUICK if options.quick else Settings()
    # With two threads on a busy machine, 77 µs become 16 ms.
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    figures = [figure for name in options.only for figure in run_group(name, settings)]
    path = options.json or RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}{'-quick' if options.quick else ''}.json"
    write_json(figures, path, asdict(settings))
    print_table(figures)
    print(f"Saved to {path}")
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python dev.py bench", description="Measure speed and memory, side by side with other formats."
    )
    parser.add_argument("--quick", action="store_true", help="a small run, to check that everything works")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), help="only these groups")
    parser.add_argument("--json", type=Path, help="file for the figures (default: a new file in bench/results)")
    return parser.parse_args(arguments)


def run_group(name: str, settings: Settings) -> list[Figure]:
    print(f"Measuring {name} …", file=sys.stderr, flush=True)
    # On the disk of the checkout: the system's temporary folder may be in memory.
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=RESULTS))
    try:
        return GROUPS[name](folder, settings)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
