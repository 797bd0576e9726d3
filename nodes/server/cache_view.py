"""Samples: a page of a cache's samples, all of them or those that a search finds."""

import math
from typing import Any

import numpy as np

from ...dataset_cache import CacheError, guarded
from .refusals import Refused
from .untrusted import cut_text
from .views import View

MOST = 500  # on one page
_WORDS, _CAPTIONS, _KEPT = 20, 8, 8
_TEXTS, _TEXT_BYTES = 5_000_000, 1 << 30  # that are searched
_NAME = 500


@guarded()
def sample_page(view: View, start: int, count: int, search: str = "", bucket: str = "") -> dict[str, Any]:
    """`count` samples from the `start`th match on."""
    numbers = matches(view, search, bucket)
    total = len(view.cache) if numbers is None else len(numbers)
    if numbers is None:
        shown = range(min(start, total), min(start + count, total))
    else:
        shown = numbers[start : start + count].tolist()
    rows = [_row(view, number) for number in shown]
    return {"generation": view.manifest.generation, "total": total, "start": start, "samples": rows}


def matches(view: View, search: str, bucket: str) -> np.ndarray | None:
    """The samples in which every word of the search occurs, in a caption or the file's name; None stands for all."""
    words = tuple(dict.fromkeys(search.lower().split()))
    if len(words) > _WORDS:
        raise Refused(f"search: {len(words)} words, {_WORDS} are allowed")
    if not words and not bucket:
        return None
    key = (words, bucket)
    found = view.matches.get(key)
    if found is None:
        found = np.flatnonzero(_in_bucket(view, bucket) & _with_words(view, words))
        while len(view.matches) >= _KEPT:
            view.matches.pop(next(iter(view.matches)), None)
        view.matches[key] = found
    return found


def _in_bucket(view: View, bucket: str) -> np.ndarray:
    numbers = view.index.arrays.samples["bucket"]
    if not bucket:
        return np.ones(len(numbers), bool)
    return np.isin(numbers, [number for number, name in enumerate(view.bucket_names) if name == bucket])


def _with_words(view: View, words: tuple[str, ...]) -> np.ndarray:
    """Texts are stored once each, so each is searched once; samples only refer to them."""
    arrays = view.index.arrays
    found = np.ones(len(arrays.samples), bool)
    if not words:
        return found
    if len(arrays.string_ends) > _TEXTS or len(arrays.strings) > _TEXT_BYTES:
        raise Refused(f"{len(arrays.string_ends):,} texts are too many to be searched here")
    sources, captions = arrays.samples["source"], arrays.captions
    first = arrays.samples["captions"].astype(np.int64)
    last = first + arrays.samples["caption_count"]
    texts = view.lowered
    _check(np.concatenate([sources, captions]), len(texts) - 1)
    _check(np.concatenate([first, last]), len(captions))
    # Of a source, its own name: folders are named after what all their pictures show.
    names = [text.rpartition("/")[2] for text in texts]
    for word in words:
        hit = np.fromiter((word in text for text in texts), bool, len(texts))
        named = hit if "/" in word else np.fromiter((word in name for name in names), bool, len(names))
        before = np.concatenate([[0], np.cumsum(hit[captions])])
        found &= named[sources] | (before[last] > before[first])
    return found


def _check(numbers: np.ndarray, most: int) -> None:
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) > most):
        raise CacheError("the index is damaged: a sample refers to a text that is not there; verify the cache")


def _row(view: View, number: int) -> dict[str, Any]:
    index, names, sets = view.index, view.bucket_names, view.set_names
    _, first, count, bucket, group, source, repeats, weight, width, height, *_ = index.sample_row(number)
    captions = [index.string(each) for each in index.caption_numbers(first, count)[:_CAPTIONS]]
    return {
        "number": number,
        "captions": [cut_text(caption) for caption in captions],
        "source": cut_text(index.string(source), _NAME),
        "width": width,
        "height": height,
        "bucket": names[bucket] if bucket < len(names) else "",
        "set": cut_text(sets[group], _NAME) if group < len(sets) else "",
        "repeats": repeats,
        "weight": weight if math.isfinite(weight) else None,
    }
