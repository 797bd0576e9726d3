"""How a run ended, in run.json, if it did not end by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...dataset_cache import CacheError
from ...errors import TrainError
from .folder import Run

log = logging.getLogger("streamcache")

MAX_PROBLEM = 500  # characters of an error that are stored


@contextmanager
def end_recorded(run: Run, step: Callable[[], int]) -> Iterator[None]:
    """Record in run.json that an error or an interrupt ended the run, and at which step."""
    try:
        yield
    except Exception as error:
        _describe_end(run, status="failed", step=step(), problem=_message(error))
        raise
    except BaseException:
        _describe_end(run, status="interrupted", step=step())
        raise


def _describe_end(run: Run, **facts: object) -> None:
    """A second error, as of a full disk, does not hide the first."""
    try:
        run.describe(**facts)
    except TrainError as error:
        log.warning("How the run ended could not be recorded: %s", error)


def _message(error: Exception) -> str:
    """The error's message; errors that are not the pack's own get their type in front."""
    own = isinstance(error, (TrainError, CacheError))
    return (str(error) if own else f"{type(error).__name__}: {error}")[:MAX_PROBLEM]
