"""What a command prints: text for people, or one JSON object for programs."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def add_output_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, and no progress bar")


def show(args: argparse.Namespace, facts: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print the facts as JSON if that was asked for, the lines otherwise."""
    if args.json:
        print(json.dumps(facts, indent=1, default=str))
    else:
        for line in lines:
            print(line)


def byte_count(count: int) -> str:
    """1.4 GB, with the decimal units that disks are sold in."""
    if abs(count) < 1000:
        return f"{count:,} bytes"
    size = count / 1000
    for unit in ("KB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def plural(count: int, noun: str) -> str:
    """`1 sample`, `2 samples`, `3 entries`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip()
        for row in rows
    ]
