"""Find and replace with a regular expression, in a process of its own: one that would run for ever is ended."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from ...errors import CacheError

SECONDS = 10.0  # for all texts together; 100,000 captions take less than one
_MOST_CHARACTERS = 64 << 20  # of all results together
_LONGEST = 1000  # characters of an expression
# Python's `re` cannot be interrupted: it holds the interpreter until it has a result.
_PROGRAM = """
import json, re, sys
find, by, texts, most = json.loads(sys.stdin.buffer.read())
pattern, references = re.compile(find), by.count(chr(92))
def longest(match):
    return max(len(group or "") for group in (match[0], *match.groups()))
for text in texts:
    for match in pattern.finditer(text):
        most -= len(by) + (references and references * longest(match))
        if most < 0:
            raise MemoryError
sys.stdout.write(json.dumps([pattern.sub(by, text) for text in texts]))
"""


def replace_pattern(texts: Sequence[str], find: str, by: str, seconds: float = SECONDS) -> list[str]:
    """The texts with all matches replaced. Invalid expressions, and those that take too long, raise CacheError."""
    _check(find, by)
    given = json.dumps([find, by, list(texts), _MOST_CHARACTERS]).encode()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            input=given,
            capture_output=True,
            timeout=seconds,
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except subprocess.TimeoutExpired:
        raise CacheError(
            f"the expression {find!r} takes longer than {seconds:g} s; nested repeats such as (a+)+ can take for ever"
        ) from None
    except OSError as error:
        raise CacheError(f"regular expressions need a process of their own, which failed: {error}") from error
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        too_long = "the result would be too long" if reason == "MemoryError" else reason or "its process was ended"
        raise CacheError(f"the expression {find!r} cannot be applied: {too_long}")
    return json.loads(done.stdout)


def _check(find: str, by: str) -> None:
    """Most mistakes show without a process."""
    if max(len(find), len(by)) > _LONGEST:
        raise CacheError(f"the expression has {max(len(find), len(by)):,} characters, expected at most {_LONGEST:,}")
    try:
        pattern = re.compile(find)
    except (re.error, RecursionError, OverflowError) as error:
        raise CacheError(f"the expression {find!r} is invalid: {error}") from None
    try:
        pattern.sub(by, "")
    except (re.error, IndexError) as error:
        raise CacheError(f"the replacement {by!r} is invalid: {error}") from None
