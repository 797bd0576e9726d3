"""One cache on a page: the generation that is shown, its details, and its samples page by page, all or those that a
search finds."""

import math
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...dataset_cache import (
    Cache,
    CacheError,
    CheckedGeneration,
    Index,
    Manifest,
    Overview,
    Usage,
    bucket_labels,
    guarded,
    manifest_stamp,
    open_checked,
    open_index,
    overview_of,
    read_manifest,
    string_of,
    usage_of,
)
from ..library import OpenPool
from ..outside import Refused, as_dict, as_list, cut, cut_text
from .cache_list import CacheRow

MAX_PAGE = 500  # samples on one page
_MAX_VIEWS = 4
_ATTEMPTS = 5
_MAX_LISTED = 200
_MAX_WORDS, _MAX_CAPTIONS, _MAX_SEARCHES = 20, 8, 8
_MAX_TEXTS, _MAX_TEXT_BYTES = 5_000_000, 1 << 30  # that can be searched
_NAME = 500
_PEEKED = 256  # samples: enough to learn how many pixels a latent pixel covers


class View:
    """One generation, opened without a lease: looking at a cache leaves no trace on disk. If the generation is removed
    meanwhile, reading it fails."""

    def __init__(self, folder: Path, manifest: Manifest, index: Index) -> None:
        self.folder, self.manifest, self.index = folder, manifest, index
        self.generation = manifest.generation
        self.cache = Cache(folder, manifest, index)
        self.set_names = list(manifest.sets)
        self.matches: dict[tuple[tuple[str, ...], str], np.ndarray] = {}  # (words, bucket) → sample numbers

    @cached_property
    def bucket_names(self) -> list[str]:
        return bucket_labels(self.index.sample_rows(0, _PEEKED), self.manifest.buckets)

    @cached_property
    def current(self) -> CheckedGeneration:
        """The generation with all its checks, which take a moment if it is large."""
        return open_checked(self.folder, self.manifest)

    @cached_property
    def overview(self) -> Overview:
        return overview_of(self.current)

    @cached_property
    def lowered(self) -> list[str]:
        """All captions and source names, in lower case."""
        arrays = self.index.arrays
        return [string_of(arrays, number).lower() for number in range(len(arrays.string_ends))]


def open_view(folder: Path, generation: str = "") -> View:
    """A generation of the cache: one that a page looked at a moment ago, or the published one."""
    return VIEWS.get(folder, generation)


def close_views(folder: Path | None = None) -> None:
    """Close the files of a cache, or of all; on Windows they could not be moved or removed otherwise."""
    VIEWS.close(folder)


@guarded
def sample_page(view: View, start: int, count: int, search: str = "", bucket: str = "") -> dict[str, Any]:
    """One page of samples: `count` matches, beginning with match `start`."""
    numbers = matches(view, search, bucket)
    total = len(view.cache) if numbers is None else len(numbers)
    if numbers is None:
        shown = range(min(start, total), min(start + count, total))
    else:
        shown = numbers[start : start + count].tolist()
    rows = [_row(view, number) for number in shown]
    return {"generation": view.manifest.generation, "total": total, "start": start, "samples": rows}


def matches(view: View, search: str, bucket: str) -> np.ndarray | None:
    """The samples that have every word of the search in a caption or the file's name; None means all."""
    words = tuple(dict.fromkeys(search.lower().split()))
    if len(words) > _MAX_WORDS:
        raise Refused(f"search: {len(words)} words; at most {_MAX_WORDS} are allowed")
    if not words and not bucket:
        return None
    key = (words, bucket)
    found = view.matches.get(key)
    if found is None:
        found = np.flatnonzero(_in_bucket(view, bucket) & _with_words(view, words))
        while len(view.matches) >= _MAX_SEARCHES:
            view.matches.pop(next(iter(view.matches)), None)
        view.matches[key] = found
    return found


def cache_detail(row: CacheRow, view: View) -> dict[str, Any]:
    """Everything that a page shows of one cache except its samples."""
    facts = view.overview
    disk = usage_of(view.current, row.readers, row.writer)
    return {
        "row": row.to_json(),
        "fields": [_field(field, disk) for field in facts.fields[:_MAX_LISTED]],
        "parts": _parts(disk),
        "missing": list(disk.missing[:_MAX_LISTED]),
        "shared": facts.shared,
        "saved_bytes": facts.bytes_unshared - facts.bytes_shared,
        "trimmed_bytes": facts.bytes_trimmed,
        "untrimmed_bytes": facts.bytes_untrimmed,
        "captions": _captions(facts),
        "sets": [
            {"name": cut_text(name), "samples": facts.set_samples[name], "facts": cut(known)}
            for name, known in list(facts.sets.items())[:_MAX_LISTED]
        ],
        "excluded": _excluded(facts.provenance),
        "provenance": cut(facts.provenance),
    }


def _open_published(folder: Path, generation: str) -> View:
    for _ in range(_ATTEMPTS):
        stamp = manifest_stamp(folder)
        manifest = read_manifest(folder)
        if manifest is None:
            raise Refused(f"{folder.name}: removed, or never finished", 404)
        if generation and manifest.generation != generation:
            raise Refused(f"{folder.name} was saved again since this page was loaded; refresh the page", 409)
        try:
            return View(folder, manifest, open_index(folder, manifest))
        except CacheError:
            if manifest_stamp(folder) == stamp:
                raise
    raise Refused(f"{folder.name} is being saved; try again", 409)


VIEWS = OpenPool(_open_published, _MAX_VIEWS)


def _in_bucket(view: View, bucket: str) -> np.ndarray:
    numbers = view.index.column("bucket")
    if not bucket:
        return np.ones(len(numbers), bool)
    return np.isin(numbers, [number for number, name in enumerate(view.bucket_names) if name == bucket])


def _with_words(view: View, words: tuple[str, ...]) -> np.ndarray:
    """Each distinct text is stored once, so it is searched once; samples only refer to it."""
    arrays = view.index.arrays
    found = np.ones(len(arrays.samples), bool)
    if not words:
        return found
    if len(arrays.string_ends) > _MAX_TEXTS or len(arrays.strings) > _MAX_TEXT_BYTES:
        raise Refused(f"{len(arrays.string_ends):,} captions and names are too many to search here")
    sources, captions = arrays.samples["source"], arrays.captions
    first = arrays.samples["captions"].astype(np.int64)
    last = first + arrays.samples["caption_count"]
    texts = view.lowered
    _check(np.concatenate([sources, captions]), len(texts) - 1)
    _check(np.concatenate([first, last]), len(captions))
    # Only the file's name of a source: its folder is named after what all its images show.
    names = [text.rpartition("/")[2] for text in texts]
    for word in words:
        hit = np.fromiter((word in text for text in texts), bool, len(texts))
        named = hit if "/" in word else np.fromiter((word in name for name in names), bool, len(names))
        before = np.concatenate([[0], np.cumsum(hit[captions])])
        found &= named[sources] | (before[last] > before[first])
    return found


def _check(numbers: np.ndarray, most: int) -> None:
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) > most):
        raise CacheError("the index is damaged: a sample refers to a missing text; verify the cache")


def _row(view: View, number: int) -> dict[str, Any]:
    index, names, sets = view.index, view.bucket_names, view.set_names
    row = index.sample_row(number)
    return {
        "number": number,
        "captions": [cut_text(caption) for caption in index.captions(row, _MAX_CAPTIONS)],
        "source": cut_text(index.string(row.source), _NAME),
        "width": row.width,
        "height": row.height,
        "bucket": names[row.bucket] if row.bucket < len(names) else "",
        "set": cut_text(sets[row.set], _NAME) if row.set < len(sets) else "",
        "repeats": row.repeats,
        "weight": row.weight if math.isfinite(row.weight) else None,
    }


def _field(field: Any, disk: Usage) -> dict[str, Any]:
    known = asdict(field)
    return {**known, "bytes": disk.fields.get(field.name, 0), "bytes_unshared": known["bytes"]}


def _parts(disk: Usage) -> dict[str, Any]:
    """Bytes by purpose. Older generations, unfinished builds and debris are counted by file."""
    parts = {name: getattr(disk, name) for name in ("index", "unused", "older", "building", "debris")}
    return {"fields": cut(disk.fields), **parts, "older_generations": disk.older_generations}


def _captions(facts: Overview) -> dict[str, Any]:
    return {
        "total": facts.captions,
        "distinct": facts.captions_distinct,
        "empty": facts.captions_empty,
        "common": [[cut_text(text), count] for text, count in facts.captions_common],
    }


def _excluded(provenance: dict[str, Any]) -> dict[str, Any]:
    found = as_dict(as_dict(provenance.get("encode")).get("excluded"))
    files = [as_dict(each) for each in as_list(found.get("files"))[:_MAX_LISTED]]
    count = found.get("count")
    return {
        "count": count if type(count) is int else len(files),
        "files": [{name: cut_text(str(each.get(name, ""))) for name in ("source", "reason")} for each in files],
    }
