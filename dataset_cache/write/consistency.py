"""Whether the files of an index agree: every number points to something that exists, and all is in order."""

from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import CacheError
from ..format import Layout, Manifest
from ..index import (
    CHUNK,
    NO_BUCKET,
    NO_ROUTE,
    OFFSET_BITS,
    EntryPass,
    Index,
    Rows,
    derived_routes,
    entries_of_rows,
    find_keys,
    has_wrong_orders,
    listed_samples,
    partitions,
    sample_chunks,
    shards_of,
    variants_of,
)

_OFFSETS = np.uint64((1 << OFFSET_BITS) - 1)


def find_inconsistency(manifest: Manifest, index: Index) -> str | None:
    """The first inconsistency of an index, or None. Each check relies on the ones before it."""
    try:
        for check in (_texts, _entries, _references, _variants, _samples, _names, _keys, _buckets):
            for problem in check(manifest, index):
                return problem
    except CacheError as error:
        return str(error)
    return None


def _texts(manifest: Manifest, index: Index) -> Iterator[str]:
    for name in ("layouts", "strings"):
        for part in index.parts:
            texts, ends = getattr(part.arrays, name), getattr(part.arrays, f"{name[:-1]}_ends")
            first = np.uint64(part.first[name])
            last = int(ends[-1] - first) if len(ends) else 0
            if not _ascending(ends) or (len(ends) and ends[0] < first) or last != len(texts):
                yield f"the ends of the {name} are not in order"
                return
            try:
                _decode(texts, ends, int(first), "strict" if name == "layouts" else "surrogatepass")
            except UnicodeDecodeError as error:
                yield f"its texts are not UTF-8: {error}"


def _decode(texts: np.ndarray, ends: np.ndarray, first: int, errors: str) -> None:
    """Some texts at a time."""
    start = 0
    for at in range(0, len(ends), CHUNK):
        end = int(ends[min(at + CHUNK, len(ends)) - 1]) - first
        texts[start:end].tobytes().decode("utf-8", errors)
        start = end


def _entries(manifest: Manifest, index: Index) -> Iterator[str]:
    layouts = [index.layout(n) for n in range(index.lengths["layout_ends"])]
    counts = np.array([len(layout.specs) for layout in layouts], np.int64)
    for part in index.parts:
        refs, leaves = part.first["refs"], part.first["leaves"]
        for at in range(0, len(part.arrays.entries), CHUNK):
            entries = part.arrays.entries[at : at + CHUNK]
            if not _below(entries["layout"], len(counts)) or not _below(entries["field"], len(manifest.fields)):
                yield "an entry has a layout or a field that does not exist"
                return
            ends = np.cumsum(counts[entries["layout"].astype(np.int64)]) + refs
            if entries["refs"][0] != refs or not np.array_equal(entries["refs"][1:], ends[:-1]):
                yield "the references of the entries are not in order"
                return
            if (
                not _ascending(entries["leaves"])
                or entries["leaves"][0] < leaves
                or (not at and entries["leaves"][0] != leaves)
            ):
                yield "the leaves of the entries are not in order"
            refs, leaves = int(ends[-1]), int(entries["leaves"][-1])
        if refs != part.lengths["refs"]:
            yield "the references of the entries are not in order"
        if leaves > part.lengths["leaves"]:
            yield "the leaves of the entries are not in order"
    if manifest.counts.get("entries") != index.entry_count:
        yield f"it has {index.entry_count} entries, {manifest.counts.get('entries')} expected from the manifest"


def _references(manifest: Manifest, index: Index) -> Iterator[str]:
    sizes = np.array([shard.bytes for shard in manifest.shards], np.int64)
    entries = EntryPass(index)
    nbytes = np.array([spec.nbytes for spec in entries.specs], np.int64)
    for chunk in entries:
        shards = shards_of(chunk.refs)
        if not _below(shards, len(sizes)):
            yield "a reference names a shard that does not exist"
            return
        ends = (
            (chunk.refs["location"] & _OFFSETS).astype(np.int64) + nbytes[chunk.spec_of_ref] if len(shards) else shards
        )
        if (ends > sizes[shards]).any():
            yield "a reference points past the end of its shard"


def _variants(manifest: Manifest, index: Index) -> Iterator[str]:
    """Of all rows, also those that are in no run: each stands behind the one before it."""
    width = len(manifest.fields)
    for part in index.parts:
        variants, first, at, last = part.arrays.variants, part.first["variants"], 0, part.lengths["entries"]
        for rows in sample_chunks(part.arrays):
            starts = rows["variants"] - np.uint64(first)
            if not _below(starts, len(variants) - width + 1):
                yield "a sample's variants start past the end"
                return
            starts = starts.astype(np.int64)
            ends = starts + width + variants[starts[:, None] + np.arange(width)].sum(1, dtype=np.int64)
            if starts[0] != at or not np.array_equal(starts[1:], ends[:-1]) or ends[-1] > len(variants):
                yield "the variants of the samples are not in order"
                return
            at = int(ends[-1])
            if not _below(entries_of_rows(rows, variants, first, width), last):
                yield "a sample uses an entry that does not exist"
        if at != len(variants):
            yield "the variants of the samples are not in order"


def _samples(manifest: Manifest, index: Index) -> Iterator[str]:
    strings, captions = index.lengths["string_ends"], index.lengths["captions"]
    for _, rows in listed_samples(index):
        ends = rows["captions"] + rows["caption_count"]
        if not _below(ends, captions + 1) or (ends < rows["captions"]).any():
            yield "a sample's captions extend past the end"
        if not _below(rows["source"], strings):
            yield "a caption or source name does not exist"
        if not _below(rows["set"], len(manifest.sets)):
            yield "a sample belongs to a set that does not exist"
    if not all(_below(numbers, strings) for numbers in Rows(index.files, "captions").chunks()):
        yield "a caption or source name does not exist"


def _names(manifest: Manifest, index: Index) -> Iterator[str]:
    missing = {bytes.fromhex(key): name for name, key in manifest.named.items()}
    for entries in Rows(index.files, "entries").chunks() if missing else ():
        missing = {key: name for key, name in missing.items() if not find_keys(entries, [key])}
    for name in missing.values():
        yield f"the entry named {name!r} does not exist"


def _keys(manifest: Manifest, index: Index) -> Iterator[str]:
    for halves in partitions(Rows(index.files, "entries", "key")):
        if (halves[1:] == halves[:-1]).all(1).any():
            yield "two entries have the same key"


def find_wrong_order(manifest: Manifest, index: Index) -> str | None:
    """The first array of a consistent index that should repeat others in another order or form, and does not."""
    for number, part in enumerate(index.parts):
        wrong = _wrong_routes(index, number, len(manifest.fields)) or next(iter(has_wrong_orders(part)), None)
        if wrong is not None:
            return f"its array {wrong!r} does not match the others"
    return None


def _wrong_routes(index: Index, number: int, width: int) -> str | None:
    """`row_layouts` or `routes` of a file, if it is not what the other arrays say."""
    part, layouts = index.parts[number], [index.layout(n) for n in range(index.lengths["layout_ends"])]
    stored = part.arrays.row_layouts.reshape(-1, max(1, width)).tolist()
    numbers = {tuple(row): n for n, row in enumerate(stored)}
    if stored != sorted(map(list, numbers)):
        return "row_layouts"
    first, at, seen = part.first["row_layouts"] // max(1, width), 0, set[int]()
    for rows, routes in derived_routes(index.files, number, layouts, width) if width else ():
        found = [numbers.get(tuple(row)) for row in rows.tolist()]
        if None in found:
            return "row_layouts"
        seen.update(n for n in found if n is not None)
        has_route = routes["layouts"] != NO_ROUTE
        routes["layouts"][has_route] = np.array(found, np.uint32)[routes["layouts"][has_route]] + np.uint32(first)
        if not np.array_equal(part.arrays.routes[at : at + routes.nbytes], routes.view("u1").reshape(-1)):
            return "routes"
        at += routes.nbytes
    return None if len(seen) == len(numbers) else "row_layouts"


def _buckets(manifest: Manifest, index: Index) -> Iterator[str]:
    """Each sample is in the bucket of its latents' shape and dtype."""
    if "latent" not in manifest.fields:
        return
    numbers = {(b["dtype"], tuple(b["shape"])): n for n, b in enumerate(manifest.buckets)}
    layouts = [index.layout(n) for n in range(index.lengths["layout_ends"])]
    of_layout = np.array([_bucket(layout, numbers) for layout in layouts], np.int64)
    layout_of_entry, width = Rows(index.files, "entries", "layout"), len(manifest.fields)
    for part, rows in listed_samples(index):
        counts, flat = variants_of(rows, part.arrays.variants, part.first["variants"], width)
        cells = np.repeat(np.arange(counts.size), counts.reshape(-1))
        latents = cells % width == manifest.fields.index("latent")
        stated = rows["bucket"].astype(np.int64)[cells[latents] // width]
        if (stated != of_layout[layout_of_entry.take(flat[latents]).astype(np.int64)]).any():
            yield "a sample is in a bucket whose shape differs from its latent"


def _bucket(layout: Layout, numbers: dict[tuple[str, tuple[int, ...]], int]) -> int:
    slot = layout.slot_at("samples")
    if slot is None:
        return NO_BUCKET
    spec = layout.specs[slot]
    return numbers.get((spec.dtype, spec.shape[1:]), -1)


def _ascending(values: np.ndarray) -> bool:
    parts = (values[at : at + CHUNK + 1] for at in range(0, len(values), CHUNK))
    return all((part[1:] >= part[:-1]).all() for part in parts)


def _below(values: np.ndarray | Sequence[int], limit: int) -> bool:
    return not len(values) or (limit > 0 and int(np.max(values)) < limit)
