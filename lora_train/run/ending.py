"""How a run ended that did not end by itself, in its run.json."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...errors import CacheError, TrainError
from .folder import Run

log = logging.getLogger("streamcache")

MAX_PROBLEM = 500  # characters of an error that are stored
ENDED = ("done", "stopped")


@contextmanager
def end_recorded(run: Run, step: Callable[[], int], before: Mapping[str, Any]) -> Iterator[None]:
    """Store the error or interrupt that ends a run, with its last complete `step`.

    If a run that had ended was resumed and did not get to its next step, its run.json is again what it was `before`.
    """
    first = step()
    try:
        yield
    except BaseException as error:
        try:
            if before.get("status") in ENDED and step() == first:
                run.restore(before)
            elif isinstance(error, Exception):
                run.describe(status="failed", step=step(), problem=_message(error))
            else:
                run.describe(status="interrupted", step=step())
        except TrainError as second:  # as of a full disk; it does not hide the first
            log.warning("How the run ended could not be recorded: %s", second)
        raise


def _message(error: Exception) -> str:
    """The error's message; errors that are not the pack's own get their type in front."""
    own = isinstance(error, (TrainError, CacheError))
    return (str(error) if own else f"{type(error).__name__}: {error}")[:MAX_PROBLEM]
