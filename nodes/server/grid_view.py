"""The pictures of a run's grid on pages: their list, and each of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...lora_train import GRID_FOLDER, KeptPictures, open_run_file, read_from
from ..library import contained
from ..outside import GRID_FILE, Refused, as_count, cut, cut_text
from .runs import SampleImage, sample_mtime

MAX_PICTURES = 2000  # listed, latest last
BASE_DIGITS = 8
_FILE = re.compile(GRID_FILE)


def list_pictures(run: Path) -> list[dict[str, Any]]:
    """The pictures that are kept with a run, in the order in which they were made."""
    folder = contained(run, [GRID_FOLDER], run.name)
    rows = list(KeptPictures(folder).rows().values())[-MAX_PICTURES:]
    return [
        {
            "file": row.file,
            "mtime": sample_mtime(folder / row.file),
            "prompt": cut_text(row.prompt),
            "negative": cut_text(row.negative),
            # As text: JavaScript has no integers of 64 bits.
            "seed": cut_text(str(row.seed)),
            "lora": cut_text(row.lora),
            "name": cut_text(row.name),
            "step": None if row.step is None else as_count(row.step),
            "strength": row.strength,
            "settings": cut(dict(row.settings)),
            "base": cut_text(row.base, BASE_DIGITS),
        }
        for row in rows
        if _FILE.fullmatch(row.file) and (folder / row.file).is_file()
    ]


def read_picture(run: Path, file: str) -> SampleImage:
    """A picture, which never changes under its name."""
    if not _FILE.fullmatch(file):
        raise Refused("file: expected a name from the run's grid")
    opened = open_run_file(contained(run, [GRID_FOLDER, file], file))
    if opened is None:
        raise Refused(f"{run.name} has no picture {file}", 404)
    return SampleImage(read_from(opened), str(opened.identity[-1]))
