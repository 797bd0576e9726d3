"""The LoRA files of a run while it trains: when they are due, whether the disk has room, writing them, which stay."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from ..dataset_cache import replace_file
from ..errors import TrainError
from .export import DTYPES, check_room, count_files, file_bytes
from .run import (
    Export,
    Run,
    describe_exports,
    export_path,
    export_step,
    find_exports,
    has_name,
    is_written,
    may_be_file,
    partial_lora,
    recorded_exports,
    superfluous,
    written_files,
)
from .samples import latest_image
from .session import Session

log = logging.getLogger("streamcache")

_OWN_PICTURE = ("Software", "StreamCache")  # in previews: others are never replaced
_NAMED = 3  # files that are named in a message


class Exporter:
    """Writes the LoRA files of a run: some along the way and the last one, each with a preview beside it.

    Created before the run begins; raises a TrainError then if the files cannot be written as the settings ask.
    """

    def __init__(self, session: Session, run: Run, final: Path) -> None:
        self._session, self._run, self.final = session, run, final
        config = session.config
        self._every, self._epoch = config.export_every, config.export_epochs * len(session.order)  # steps, batches
        self._from, self._position = session.step, session.stepper.position
        self._unfinished = run.unfinished_lora(final)  # of this run, from before
        self._written = written_files(run.folder) if run.mode != "new" else []  # by this run, listed or not
        place = final.absolute().parent
        before = recorded_exports(run.folder) if run.resume else []
        self._listed = [one for one in before if one.step <= session.step and one.path.parent == place]
        self._check()

    @property
    def along(self) -> list[Export]:
        """The files along the way that are there now, in the order of steps."""
        return [one for one in self._listed if self._is_along(one.path) and may_be_file(one.path)]

    def begin(self) -> None:
        """Record where the files will be. Those of a run that this one overwrites are removed."""
        self._session.count_tags()  # now: it reads all captions
        gone = [one.path.name for one in self._listed if not may_be_file(one.path)]
        if gone:
            log.warning("LoRA files of this run are missing: %s", _names(gone))
        replaced = [path for path in self._written if self._run.mode == "overwrite" and self._is_along(path)]
        self._written = [path for path in self._written if path not in replaced]
        self._record(self._listed, loras=str(self.final.absolute().parent))
        _remove(replaced)

    def is_due(self, step: int) -> bool:
        """Whether a file is written after this step. The last one has a file in any case."""
        if not 0 < step < self._session.steps:
            return False
        accumulate = self._session.config.accumulate
        position = self._position + (step - self._from) * accumulate
        ends = bool(self._epoch) and position // self._epoch > (position - accumulate) // self._epoch
        return ends or bool(self._every and step % self._every == 0)

    def is_missing(self) -> bool:
        """Whether the file of the current step is due and not there, as after a kill between state and file."""
        step = self._session.step
        return self.is_due(step) and step not in [one.step for one in self.along]

    def write_along(self, loss: float | None, validation: float | None) -> Export | None:
        """Write the file of the current step, then remove those that are no longer kept; None if it is not kept."""
        session, config = self._session, self._session.config
        new = self._describe(export_path(self.final, session.step, session.steps), loss, validation)
        there = [one for one in self.along if one.step != new.step]
        dropped = superfluous([*there, new], config.keep_exports, config.keep_exports_by)
        if new not in dropped:
            # Listed first: after a kill in between, the file is one that the run wrote.
            self._record([*self._others(new), new])
            try:
                self._write(new.path)
            except OSError as error:
                log.warning("The LoRA of step %d could not be saved (%s); the run goes on", new.step, error.strerror)
                dropped = [new]
        if dropped:
            gone = [one.path for one in dropped]
            _remove([path for path in gone if path != new.path])
            self._written = [path for path in self._written if path not in gone]
            self._record([one for one in self._listed if one not in dropped])
        return None if new in dropped else new

    def write_last(self, finished: bool, loss: float | None, validation: float | None) -> Path:
        """Write the last file of the run. It has the final name if the run has finished."""
        session = self._session
        path = self.final if finished else partial_lora(self.final, session.step)
        self._write(path, "" if finished else f"step {session.step} of {session.steps}")
        new, replaced = self._describe(path, loss, validation, not finished), self._unfinished
        others = [one for one in self._others(new) if one.path != replaced]
        self._record([*others, new], lora=str(path.absolute()))
        if replaced not in (None, path.absolute()):
            _remove([replaced])
        return path

    def _write(self, path: Path, partial: str = "") -> None:
        self._session.export(path, partial)
        _write_preview(path, latest_image(self._run.samples, self._session.step))

    def _describe(self, path: Path, loss: float | None, validation: float | None, partial: bool = False) -> Export:
        session = self._session
        epochs = session.stepper.position // len(session.order)
        return Export(path.absolute(), session.step, epochs, loss, validation, partial)

    def _record(self, listed: Sequence[Export], **facts: Any) -> None:
        self._listed = sorted(listed, key=lambda one: one.step)
        self._written = list(dict.fromkeys([*self._written, *(one.path for one in self._listed)]))
        written = sorted(path.name for path in self._written if self._is_along(path))
        self._run.describe(exports=describe_exports(self._listed), written=written, **facts)

    def _others(self, new: Export) -> list[Export]:
        return [one for one in self._listed if one.path.name != new.path.name]

    def _is_along(self, path: Path) -> bool:
        return export_step(path, self.final) is not None

    def _check(self) -> None:
        """Refuse to overwrite files that the run did not write, as after it got the name of a run that was deleted."""
        if self._run.mode == "resume" and os.path.lexists(self.final) and not is_written(self.final, self._run.folder):
            self._refuse([self.final])
        if not (self._every or self._epoch):
            return
        ahead = {step: path for step, path in find_exports(self.final).items() if step > self._from}
        found = {step: path for step, path in ahead.items() if self.is_due(step)}
        self._refuse([path for _, path in sorted(found.items()) if not has_name(path, self._written)])
        self._check_room(len(found))

    def _refuse(self, files: Sequence[Path]) -> None:
        if files:
            names = _names([path.name for path in files])
            raise TrainError(f"{self.final.parent}: {names} would be overwritten by this run; give it another name, or "
                             "move these files away")  # fmt: skip

    def _check_room(self, there: int) -> None:
        session, config = self._session, self._session.config
        at = session.steps, self._from, self._position
        due = count_files(self._every, self._epoch, config.accumulate, *at) - there
        if config.keep_exports:
            due = min(
                due, max(config.keep_exports + 1 - len(self.along), 1)
            )  # the oldest goes after the newest is there
        size = file_bytes(session.network, DTYPES[config.save_dtype])
        check_room(self.final, size, due, config.export_every, config.export_epochs)


def preview_of(lora: Path) -> Path:
    """The picture of a LoRA, where ComfyUI and others look for it: my_lora.preview.png."""
    return lora.with_name(f"{lora.stem}.preview.png")


def _write_preview(lora: Path, image: Path | None) -> None:
    """Put a sample image beside a LoRA, or remove an older one. A picture that a user chose stays."""
    preview = preview_of(lora)
    try:
        if preview.exists() and not _is_own(preview):
            return
        if image is None:
            preview.unlink(missing_ok=True)
            return
        marks, data = PngImagePlugin.PngInfo(), io.BytesIO()
        marks.add_text(*_OWN_PICTURE)
        with Image.open(image) as picture:
            picture.save(data, "PNG", pnginfo=marks)
        replace_file(preview, data.getvalue())
    except OSError as error:  # the LoRA itself is saved
        log.warning("%s could not be written: %s", preview.name, error)


def _is_own(preview: Path) -> bool:
    try:
        with Image.open(preview) as picture:
            return picture.info.get(_OWN_PICTURE[0]) == _OWN_PICTURE[1]
    except OSError:
        return False


def _remove(loras: Sequence[Path]) -> None:
    """Remove LoRA files that this run wrote, with their previews."""
    for lora in loras:
        preview = preview_of(lora)
        with suppress(OSError):  # in use
            lora.unlink(missing_ok=True)
            if preview.is_file() and _is_own(preview):
                preview.unlink()


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
