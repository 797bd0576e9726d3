"""Making the pictures of a grid, except those that are kept already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from ...dataset_cache import digest_of
from ...errors import TrainError
from .columns import Column
from .kept_pictures import KeptPicture, KeptPictures
from .settings import GridSettings

BASE_DIGITS = 8  # of the hash of the model
VERSION = 1  # raise it when the same settings would give another picture


@dataclass(frozen=True)
class Row:
    """A prompt and a seed."""

    prompt: str  # its text, or a name if only its conditioning is known
    seed: int
    number: int = 0  # of the prompt
    negative: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture of the grid: pixels [1, H, W, 3] in 0…1, and whether it was made now."""

    pixels: torch.Tensor
    made: bool


class Painter(Protocol):
    """A model that draws pictures."""

    def check(self, lora: Path) -> str:
        """A remark on a LoRA that fits only in part, or none. One that does not fit is refused by a TrainError."""
        ...

    def base(self) -> Any:
        """The identity of the model without a LoRA, as JSON."""
        ...

    def identity(self, column: Column, row: Row) -> Any:
        """Everything besides the settings that decides a picture, as JSON."""
        ...

    def with_lora(self, column: Column, rows: Sequence[Row]) -> AbstractContextManager[Callable[[Row], torch.Tensor]]:
        """Inside, the LoRA is applied; the function draws the latents of one of these rows."""
        ...

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Latents → pixels [1, H, W, 3] in 0…1."""
        ...


Watch = Callable[[int, int, str], None]  # pictures done, pictures to make, what comes now


def make_rows(prompts: Sequence[str], seeds: Iterable[int], negative: str = "") -> list[Row]:
    """A row for each prompt and seed."""
    if not prompts:
        raise TrainError("no prompt is given; expected at least one line of text, or a conditioning")
    return [Row(text, seed, number, negative) for number, text in enumerate(prompts) for seed in seeds]


def row_labels(rows: Sequence[Row]) -> list[str]:
    """What is written beside each row: the prompt, and the seed if there are several."""
    several = len({row.seed for row in rows}) > 1
    return [f"{row.prompt} (seed {row.seed})" if several else row.prompt for row in rows]


def check_loras(painter: Painter, columns: Sequence[Column]) -> list[str]:
    """Refuse LoRAs that are missing or do not fit, before anything is drawn; remarks on those that fit in part."""
    files = dict.fromkeys(column.file for column in columns if column.file is not None)
    for file in files:
        if not file.is_file():
            raise TrainError(f"{file.name}: the LoRA file is missing ({file.parent}); was it moved or deleted?")
    return [remark for file in files if (remark := painter.check(file))]


def paint(
    painter: Painter,
    columns: Sequence[Column],
    rows: Sequence[Row],
    settings: GridSettings,
    kept: KeptPictures | None = None,
    watch: Watch = lambda done, total, text: None,
) -> list[list[Picture]]:
    """The pictures, by row and column. What `kept` has is not made again; what is made is kept as soon as it is."""
    keys = {(c, r): _key(painter, c, r, settings) for c in columns for r in rows} if kept is not None else {}
    found = {place: kept.latents(key) for place, key in keys.items()} if kept is not None else {}
    total = sum(found.get((c, r)) is None for c in columns for r in rows)
    base = digest_of(painter.base())[:BASE_DIGITS] if kept is not None else ""
    done, pictures = 0, dict[tuple[Column, Row], Picture]()
    for column in columns:
        missing = [row for row in rows if found.get((column, row)) is None]
        for row in rows:
            latents = found.pop((column, row), None)
            if latents is not None:
                pictures[column, row] = Picture(painter.decode(latents), made=False)
        if not missing:
            continue
        with painter.with_lora(column, missing) as draw:
            for row in missing:
                watch(done, total, f"{column.label}: {row.prompt}")
                latents = draw(row)
                pixels = painter.decode(latents)
                if kept is not None:
                    kept.keep(_entry(keys[column, row], base, column, row, settings), latents, pixels)
                pictures[column, row] = Picture(pixels, made=True)
                done += 1
    watch(done, total, "")
    return [[pictures[column, row] for column in columns] for row in rows]


def _common(settings: GridSettings) -> dict[str, Any]:
    """The settings that decide a single picture."""
    return {name: value for name, value in asdict(settings).items() if name not in ("strengths", "base", "seeds")}


def _key(painter: Painter, column: Column, row: Row, settings: GridSettings) -> str:
    identity = painter.identity(column, row)
    return digest_of(["picture", VERSION, identity, column.strength, row.seed, sorted(_common(settings).items())])


def _entry(key: str, base: str, column: Column, row: Row, settings: GridSettings) -> KeptPicture:
    return KeptPicture(
        key=key,
        file=f"{key}.png",
        prompt=row.prompt,
        negative=row.negative,
        seed=row.seed,
        lora=column.file.name if column.file else "",
        name=column.name,
        step=column.step,
        strength=column.strength,
        settings=_common(settings),
        base=base,
    )
