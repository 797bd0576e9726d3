"""Pruning: what is left of an index when samples and entries are taken out of it. No tensor is read or moved."""

from dataclasses import replace

import numpy as np

from ..write.index_builder import pack_variants, unpack_variants
from .index import IndexArrays


def prune(arrays: IndexArrays, field_count: int, samples: np.ndarray, entries: np.ndarray) -> IndexArrays:
    """Keep the samples and entries of two masks. A kept sample loses the variants whose entries are not kept.

    Arrays that only repeat others are left as they are: publishing makes them anew.
    """
    return _keep_samples(_keep_entries(arrays, field_count, entries), field_count, samples)


def _keep_entries(arrays: IndexArrays, field_count: int, kept: np.ndarray) -> IndexArrays:
    if kept.all():
        return arrays
    rows = arrays.entries[kept]
    refs, rows["refs"] = _take_ranges(arrays.refs, *_ranges(arrays.entries["refs"], len(arrays.refs), kept))
    leaves, rows["leaves"] = _take_ranges(arrays.leaves, *_ranges(arrays.entries["leaves"], len(arrays.leaves), kept))
    used, rows["layout"] = np.unique(rows["layout"], return_inverse=True)
    layouts, layout_ends = _take_texts(arrays.layouts, arrays.layout_ends, used)
    starts, variants = _drop_variants(arrays, field_count, kept)
    samples = arrays.samples.copy()
    samples["variants"] = starts
    return replace(
        arrays,
        samples=samples,
        variants=variants,
        entries=rows,
        refs=refs,
        leaves=leaves,
        layouts=layouts,
        layout_ends=layout_ends,
    )


def _drop_variants(arrays: IndexArrays, field_count: int, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts, flat = unpack_variants(arrays, field_count)
    cells = np.repeat(np.arange(counts.size), counts.reshape(-1))
    stays = kept[flat]
    counts = np.bincount(cells[stays], minlength=counts.size).reshape(counts.shape)
    numbers = np.cumsum(kept) - 1
    return pack_variants(counts, numbers[flat[stays]])


def _keep_samples(arrays: IndexArrays, field_count: int, kept: np.ndarray) -> IndexArrays:
    if kept.all():
        return arrays
    counts, flat = unpack_variants(arrays, field_count)
    of_sample = np.repeat(kept, counts.sum(1, dtype=np.int64))
    rows = arrays.samples[kept]
    rows["variants"], variants = pack_variants(counts[kept], flat[of_sample])
    starts, lengths = rows["captions"].astype(np.int64), rows["caption_count"].astype(np.int64)
    captions, rows["captions"] = _take_ranges(arrays.captions, starts, lengths)
    used, numbers = np.unique(np.concatenate([rows["source"], captions]), return_inverse=True)
    rows["source"], captions = numbers[: len(rows)], numbers[len(rows) :].astype("<u4")
    strings, string_ends = _take_texts(arrays.strings, arrays.string_ends, used)
    return replace(arrays, samples=rows, variants=variants, captions=captions, strings=strings, string_ends=string_ends)


def _ranges(starts: np.ndarray, total: int, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of the kept rows. Rows stand one behind the other, so each ends where the next one starts."""
    edges = np.append(starts, total).astype(np.int64)
    return edges[:-1][kept], np.diff(edges)[kept]


def _take_ranges(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of these ranges one behind the other, and where each starts now."""
    ends = np.cumsum(lengths)
    new_starts = ends - lengths
    picks = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - new_starts, lengths)
    return data[picks], new_starts


def _take_texts(texts: np.ndarray, ends: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    edges = np.concatenate([[0], ends.astype(np.int64)])
    lengths = np.diff(edges)[numbers]
    taken, _ = _take_ranges(texts, edges[:-1][numbers], lengths)
    return taken, np.cumsum(lengths).astype("<u8")
