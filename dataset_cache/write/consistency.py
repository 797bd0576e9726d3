"""Whether the arrays of an index agree: every number points to something that exists, and all is in order."""

from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import CacheError
from ..format import (
    Layout,
    Manifest,
)
from ..index import (
    DERIVED,
    NO_BUCKET,
    Index,
    IndexArrays,
    blob_table,
    derive,
    derive_after,
    find_keys,
    layout_texts,
    sort_order,
    unpack_variants,
    variant_cells,
)


def find_inconsistency(manifest: Manifest, arrays: IndexArrays) -> str | None:
    """The first inconsistency of an index, or None. Each check relies on the ones before it."""
    try:
        for check in (_texts, _entries, _references, _samples, _names, _keys, _buckets):
            for problem in check(manifest, arrays):
                return problem
    except CacheError as error:
        return str(error)
    return None


def _texts(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    for name, texts, ends in (
        ("layouts", arrays.layouts, arrays.layout_ends),
        ("strings", arrays.strings, arrays.string_ends),
    ):
        if not _ascending(ends) or (int(ends[-1]) if len(ends) else 0) != len(texts):
            yield f"the ends of the {name} are not in order"
    try:
        arrays.layouts.tobytes().decode()
        arrays.strings.tobytes().decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        yield f"its texts are not UTF-8: {error}"


def _entries(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    entries = arrays.entries
    counts = np.array([len(Layout(text).specs) for text in layout_texts(arrays)], np.int64)
    if not _below(entries["layout"], len(counts)) or not _below(entries["field"], len(manifest.fields)):
        yield "an entry has a layout or a field that does not exist"
        return
    needed = counts[entries["layout"].astype(np.int64)]
    starts = np.cumsum(needed) - needed
    if not np.array_equal(entries["refs"], starts) or needed.sum() != len(arrays.refs):
        yield "the references of the entries are not in order"
    leaves = np.append(entries["leaves"], np.uint64(len(arrays.leaves)))
    if not _ascending(leaves) or (len(entries) and leaves[0] != 0):
        yield "the leaves of the entries are not in order"
    if manifest.counts.get("entries") != len(entries):
        yield f"it has {len(entries)} entries, {manifest.counts.get('entries')} expected from the manifest"


def _references(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    table = blob_table(arrays)
    if not _below(table.shards, len(manifest.shards)):
        yield "a reference names a shard that does not exist"
        return
    sizes = np.array([shard.bytes for shard in manifest.shards], np.int64)
    if len(table) and (table.offsets + table.nbytes > sizes[table.shards]).any():
        yield "a reference points past the end of its shard"


def _samples(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    samples, width = arrays.samples, len(manifest.fields)
    starts = samples["variants"].astype(np.int64)
    if not _below(samples["variants"], len(arrays.variants) - width + 1):
        yield "a sample's variants start past the end"
        return
    counts = arrays.variants[starts[:, None] + np.arange(width)].sum(1, dtype=np.int64)
    lengths = counts + width
    if not np.array_equal(starts, np.cumsum(lengths) - lengths) or lengths.sum() != len(arrays.variants):
        yield "the variants of the samples are not in order"
        return
    if not _below(unpack_variants(arrays, width)[1], len(arrays.entries)):
        yield "a sample uses an entry that does not exist"
    ends = samples["captions"] + samples["caption_count"]
    if not _below(ends, len(arrays.captions) + 1) or (ends < samples["captions"]).any():
        yield "a sample's captions extend past the end"
    strings = len(arrays.string_ends)
    if not _below(arrays.captions, strings) or not _below(samples["source"], strings):
        yield "a caption or source name does not exist"
    if not _below(samples["set"], len(manifest.sets)):
        yield "a sample belongs to a set that does not exist"


def _names(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    for name, key in manifest.named.items():
        if not find_keys(arrays.entries, [bytes.fromhex(key)]):
            yield f"the entry named {name!r} does not exist"


def _keys(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    keys = np.ascontiguousarray(arrays.entries["key"])
    halves = keys.view("<u8").reshape(-1, 2)[sort_order(keys)]
    if len(halves) > 1 and (halves[1:] == halves[:-1]).all(1).any():
        yield "two entries have the same key"


def find_wrong_order(manifest: Manifest, index: Index) -> str | None:
    """The first array of a consistent index that should repeat others in another order or form, and does not."""
    files, width = [part.arrays for part in index.parts], len(manifest.fields)
    for number, arrays in enumerate(files):
        expected = derive_after(files[:number], arrays, width) if number else derive(arrays, width)
        for name in DERIVED:
            if not np.array_equal(getattr(expected, name), getattr(arrays, name)):
                return f"its array {name!r} does not match the others"
    return None


def _buckets(manifest: Manifest, arrays: IndexArrays) -> Iterator[str]:
    """Each sample is in the bucket of its latents' shape and dtype."""
    if "latent" not in manifest.fields or not len(arrays.samples):
        return
    numbers = {(b["dtype"], tuple(b["shape"])): n for n, b in enumerate(manifest.buckets)}
    of_layout = np.array([_bucket(Layout(text), numbers) for text in layout_texts(arrays)], np.int64)
    field = manifest.fields.index("latent")
    cells, flat = variant_cells(arrays, len(manifest.fields))
    latents = cells % len(manifest.fields) == field
    stated = arrays.samples["bucket"].astype(np.int64)[cells[latents] // len(manifest.fields)]
    found = of_layout[arrays.entries["layout"].astype(np.int64)[flat[latents]]]
    if (stated != found).any():
        yield "a sample is in a bucket whose shape differs from its latent"


def _bucket(layout: Layout, numbers: dict[tuple[str, tuple[int, ...]], int]) -> int:
    slot = layout.slot_at("samples")
    if slot is None:
        return NO_BUCKET
    spec = layout.specs[slot]
    return numbers.get((spec.dtype, spec.shape[1:]), -1)


def _ascending(values: np.ndarray) -> bool:
    return len(values) < 2 or bool((values[1:] >= values[:-1]).all())


def _below(values: np.ndarray | Sequence[int], limit: int) -> bool:
    return not len(values) or (limit > 0 and int(np.max(values)) < limit)
