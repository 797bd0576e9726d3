"""Operations on whole index arrays: prune, variants, routes, buckets. No tensor is read or moved."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import CacheError
from ..format import ALIGNMENT, Layout
from .index_file import ARRAY_TYPES, IndexArrays
from .index_rows import NO_BUCKET, NO_LAYOUT, NO_ROUTE, route_type

DERIVED = ("row_layouts", "routes", "entry_order", "ref_order")


def prune(arrays: IndexArrays, field_count: int, samples: np.ndarray, entries: np.ndarray) -> IndexArrays:
    """Keep the samples and entries of two masks. A kept sample loses the variants whose entries are not kept.

    Derived arrays are not updated: publishing derives them again.
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
    return arrays if kept.all() else take_samples(arrays, field_count, np.flatnonzero(kept))


def take_samples(arrays: IndexArrays, field_count: int, numbers: np.ndarray) -> IndexArrays:
    """The index with these samples, in this order, and only the texts that they need."""
    rows = arrays.samples[numbers]
    counts, flat = unpack_variants(arrays, field_count)
    lengths = counts.sum(1, dtype=np.int64)
    flat, _ = _take_ranges(flat, (np.cumsum(lengths) - lengths)[numbers], lengths[numbers])
    rows["variants"], variants = pack_variants(counts[numbers], flat)
    starts, lengths = rows["captions"].astype(np.int64), rows["caption_count"].astype(np.int64)
    captions, rows["captions"] = _take_ranges(arrays.captions, starts, lengths)
    used, renumbered = np.unique(np.concatenate([rows["source"], captions]), return_inverse=True)
    rows["source"], captions = renumbered[: len(rows)], renumbered[len(rows) :].astype("<u4")
    strings, string_ends = _take_texts(arrays.strings, arrays.string_ends, used)
    return replace(arrays, samples=rows, variants=variants, captions=captions, strings=strings, string_ends=string_ends)


def concatenated(parts: Sequence[IndexArrays]) -> IndexArrays:
    """The arrays of index files that continue each other, without those that `derive` fills in."""
    if len(parts) == 1:
        return replace(parts[0], **{name: np.empty(0, ARRAY_TYPES[name]) for name in DERIVED})
    names = [name for name in ARRAY_TYPES if name not in DERIVED]
    return IndexArrays(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


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


def layouts_of(arrays: IndexArrays) -> list[Layout]:
    """The layouts that a file adds: its ends count from the first byte of the first file."""
    edges = (
        [int(arrays.layout_ends[-1]) - len(arrays.layouts), *arrays.layout_ends.tolist()]
        if len(arrays.layout_ends)
        else [0]
    )
    return [Layout(arrays.layouts[a - edges[0] : b - edges[0]].tobytes().decode()) for a, b in pairwise(edges)]


def starts_of(files: Sequence[np.ndarray]) -> np.ndarray:
    """Where each file's array starts in one that goes over all of them."""
    lengths = np.array([len(file) for file in files], np.int64)
    return np.cumsum(lengths) - lengths


def gather(files: Sequence[np.ndarray], starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The rows of these numbers, counted over all files."""
    numbers = numbers.astype(np.int64)
    if len(files) == 1 and (not len(numbers) or int(numbers.max()) < len(files[0])):
        return files[0][numbers]
    found = np.empty(len(numbers), files[0].dtype)
    ends = np.append(starts[1:], starts[-1] + len(files[-1]))
    if len(numbers) and int(numbers.max()) >= ends[-1]:
        raise CacheError("the index is damaged: a sample uses an entry that does not exist")
    for file, start, end in zip(files, starts, ends, strict=True):
        own = (numbers >= start) & (numbers < end)
        found[own] = file[numbers[own] - start]
    return found


def unpack_variants(arrays: IndexArrays, field_count: int) -> tuple[np.ndarray, np.ndarray]:
    """The counts [samples, fields] and the entries, in order, of the samples of an index."""
    return unpack_variants_of(arrays.samples, arrays.variants, field_count)


def unpack_variants_of(samples: np.ndarray, variants: np.ndarray, field_count: int) -> tuple[np.ndarray, np.ndarray]:
    starts = samples["variants"].astype(np.int64)
    places = starts[:, None] + np.arange(field_count)
    is_entry = np.ones(len(variants), bool)
    is_entry[places.reshape(-1)] = False
    return variants[places], variants[is_entry]


def entries_of_rows(rows: np.ndarray, variants: np.ndarray, first: int, width: int) -> np.ndarray:
    """The entries of all variants of consecutive samples, whose numbers into `variants` start at `first`."""
    if not len(rows):
        return np.empty(0, np.int64)
    starts = rows["variants"].astype(np.int64) - first
    end = int(starts[-1]) + width + int(variants[starts[-1] : starts[-1] + width].sum(dtype=np.int64))
    own = rows.copy()
    own["variants"] -= np.uint64(first + int(starts[0]))
    return unpack_variants_of(own, variants[starts[0] : end], width)[1].astype(np.int64)


def join_widths(first: IndexArrays, width: int, second: IndexArrays, wider: int) -> IndexArrays:
    """The arrays of two files of which the second continues the first and has more fields, in one."""
    joined = concatenated([first, second])
    if wider == width or not len(first.samples):
        return joined
    own = second.samples.copy()
    own["variants"] -= np.uint64(len(first.variants))
    counts, flat = unpack_variants(first, width)
    new_counts, new_flat = unpack_variants(replace(second, samples=own), wider)
    counts = np.concatenate([np.pad(counts, ((0, 0), (0, wider - width))), new_counts])
    starts, variants = pack_variants(counts, np.concatenate([flat, new_flat]))
    samples = joined.samples.copy()
    samples["variants"] = starts
    return replace(joined, samples=samples, variants=variants)


def variant_cells(arrays: IndexArrays, field_count: int) -> tuple[np.ndarray, np.ndarray]:
    """For every variant of every sample, its cell (sample × fields + field) and its entry."""
    counts, flat = unpack_variants(arrays, field_count)
    return np.repeat(np.arange(counts.size), counts.reshape(-1)), flat


def pack_variants(counts: np.ndarray, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The opposite of `unpack_variants`: where each sample's variants start, and the array."""
    width = counts.shape[1]
    lengths = width + counts.sum(1, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    variants = np.empty(int(starts[-1]), "<u4")
    is_entry = np.ones(len(variants), bool)
    places = (starts[:-1, None] + np.arange(width)).reshape(-1)
    variants[places] = counts.reshape(-1)
    is_entry[places] = False
    variants[is_entry] = flat
    return starts[:-1].astype("<u8"), variants


def used_entries(arrays: IndexArrays, field_count: int, named: Sequence[int]) -> np.ndarray:
    """A mask of the entries that a sample or a named entry uses."""
    used = np.zeros(len(arrays.entries), bool)
    if len(arrays.samples):
        used[unpack_variants(arrays, field_count)[1]] = True
    used[list(named)] = True
    return used


def find_keys(entries: np.ndarray, keys: Iterable[bytes]) -> list[int]:
    """The numbers of the entries with these keys, as far as they exist."""
    halves = np.ascontiguousarray(entries["key"]).view("<u8").reshape(-1, 2)
    return [int(n) for key in keys for n in np.flatnonzero((halves == np.frombuffer(key, "<u8")).all(1))]


def bucket_table(buckets: Mapping[tuple[str, tuple[int, ...]], int], samples: np.ndarray) -> tuple[dict[str, Any], ...]:
    """The manifest's list of buckets, each with its number of samples."""
    counts = np.bincount(samples["bucket"][samples["bucket"] != NO_BUCKET], minlength=len(buckets))
    return tuple({"dtype": d, "shape": list(s), "samples": int(counts[n])} for (d, s), n in buckets.items())


def tensor_distances(layout: Layout) -> tuple[list[int], int]:
    """The offset of each tensor from its entry's first byte if they are adjacent, and the total size."""
    position, distances = 0, []
    for spec in layout.specs:
        position += -position % ALIGNMENT
        distances.append(position)
        position += spec.nbytes
    return distances, position


def make_routes(
    counts: np.ndarray, flat: np.ndarray, entries: np.ndarray, locations: np.ndarray, layouts: Sequence[Layout]
) -> tuple[np.ndarray, np.ndarray]:
    """(row layouts [R, fields], routes) for samples with these numbers of variants, all at once.

    A route repeats what entries and references say, in the form that reading a batch needs: for a sample with one entry
    per field, a row layout (the layouts of all fields, numbered) and, per field, a location and where the leaves start.
    Samples with variants, or with an entry whose tensors are apart, have no route and are read entry by entry.
    """
    routes, simple = np.zeros(len(counts), route_type(counts.shape[1])), counts == 0
    if len(flat):
        present, chosen = counts == 1, flat[_places(counts, len(flat))]
        found = entries[chosen]
        refs = np.minimum(found["refs"].astype(np.int64), max(len(locations) - 1, 0))
        routes["fields"][..., 0] = np.where(present, locations[refs], 0) if len(locations) else 0
        routes["fields"][..., 1] = np.where(present, found["leaves"], 0)
        simple |= present & _lie_together(entries, locations, layouts)[chosen]
    row_layouts, which = distinct_rows(layout_rows(counts, entries["layout"][flat]))
    routes["layouts"] = np.where(simple.all(1), which, NO_ROUTE)
    return row_layouts, routes


def layout_rows(counts: np.ndarray, layouts: np.ndarray) -> np.ndarray:
    """The layout of each sample's entry of each field, if it has one; `layouts` has those of all variants in order."""
    if not len(layouts):
        return np.full(counts.shape, NO_LAYOUT, "<u4")
    return np.where(counts == 1, layouts[_places(counts, len(layouts))], np.uint32(NO_LAYOUT))


def _places(counts: np.ndarray, variants: int) -> np.ndarray:
    """The first variant of each sample and field among all; meaningless if it has none."""
    return np.minimum(np.cumsum(counts.reshape(-1), dtype=np.int64).reshape(counts.shape) - counts, variants - 1)


def distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows in order, and the number of each row among them."""
    which = np.zeros(len(rows), np.int64)
    first = which[:1]
    for column in rows.T:
        values, numbers = np.unique(column, return_inverse=True)
        _, first, which = np.unique(which * len(values) + numbers, return_index=True, return_inverse=True)
    return rows[first], which


def _lie_together(entries: np.ndarray, locations: np.ndarray, layouts: Sequence[Layout]) -> np.ndarray:
    """Which entries have adjacent tensors, as a writer leaves them unless one was stored before."""
    result = np.ones(len(entries), bool)
    for number, layout in enumerate(layouts):
        members = np.flatnonzero(entries["layout"] == number)
        distances, _ = tensor_distances(layout)
        if len(distances) > 1:
            first = entries["refs"][members].astype(np.int64)
            found = locations[first[:, None] + np.arange(len(distances))]
            result[members] = (found - found[:, :1] == np.asarray(distances, np.uint64)).all(1)
    return result
