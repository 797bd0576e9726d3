"""The TensorBoard log of a run, and the check that it can be written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ...errors import TrainError


def check_events() -> type[Any]:
    """TensorBoard's writer, or a TrainError with the command that installs it."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise TrainError('tensorboard = true: needs tensorboardX; run "pip install tensorboardX"') from None
    return SummaryWriter


class Events:
    """The TensorBoard log of a run. TensorBoard no longer shows what was logged before for steps after `resume_at`.

    A flush ends the file and the next value begins another: tensorboardX's own flush leaves out what is still queued.
    """

    def __init__(self, folder: Path, resume_at: int = 0) -> None:
        self._make, self._folder = check_events(), folder
        self._taken_back: int | None = resume_at + 1  # steps from here on, by the first file
        self._writer: Any = None

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        if self._writer is None:
            # Without a suffix, two files that begin within a second would have one name.
            name = {"filename_suffix": f".{time.time_ns()}"}
            self._writer = self._make(str(self._folder), purge_step=self._taken_back, flush_secs=1, **name)
            self._taken_back = None
        self._writer.add_scalar(tag, value, step)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
