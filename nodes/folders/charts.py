"""A folder of images in numbers: its buckets, tags, words and caption lengths, and what a run will see of it."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any

from ...dataset_cache import Transform, curate
from .open_folders import FolderNow

_MAX_ROWS = 200


def folder_charts(now: FolderNow, transform: Transform) -> dict[str, Any]:
    """Counts for charts. Excluded images count only as such. They are kept as long as the folder stays as it is."""
    counted = now.result(("charts", transform), lambda: _count(now, transform))
    return {"state": now.state, **counted, "undo": curate.last_edit(now.root)}


def _count(now: FolderNow, transform: Transform) -> dict[str, Any]:
    images = now.view.images
    used = [image for image in images if not image.excluded]
    sets = curate.count_subfolders(now.view)
    problems = [(image.name, image.problem) for image in images if image.problem]
    return {
        "counts": {
            "images": len(images),
            "captioned": sum(bool(image.lines) for image in images),
            "excluded": len(images) - len(used),
            "masked": sum(image.masked for image in images),
            "problems": len(problems),
            "samples": sum(row.samples for row in sets),
        },
        "buckets": _first(curate.count_buckets(used, transform)),
        "lengths": [[words, count] for words, count in curate.count_caption_lengths(used).items()],
        "tags": _first(curate.count_tags(used)),
        "words": _first(curate.count_words(used)),
        "problems": [
            {"place": place, "words": words} for place, words in islice([*now.view.problems, *problems], _MAX_ROWS)
        ],
        "sets": [asdict(row) for row in sets[:_MAX_ROWS]],
    }


def _first(counts: dict[str, int]) -> list[list[Any]]:
    return [[name, count] for name, count in islice(counts.items(), _MAX_ROWS)]
