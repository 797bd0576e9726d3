"""Builds the index of the next generation: the entries of the last one, new entries, and the list of samples."""

import struct
import warnings
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from ...errors import CacheError
from ..format import Layout, Manifest
from ..index import (
    ARRAY_TYPES,
    ENTRY,
    NO_BUCKET,
    OFFSET_BITS,
    REF,
    SAMPLE,
    Index,
    IndexArrays,
    SampleFacts,
    guarded,
    pack_entry_row,
    pack_sample_row,
    pack_variants,
)
from .digest_table import DigestTable

# Lookups that the mapped index answers itself; building a table takes four times as long as these, at 1,000 entries.
_FEW = 64


def check_facts(facts: SampleFacts) -> SampleFacts:
    """The facts as they are stored; those that the index cannot store are refused before anything is written."""
    place = facts.source if isinstance(facts.source, str) and facts.source else "sample"
    captions: Any = facts.captions
    if isinstance(captions, str):
        captions = (captions,)
    elif captions is not None and not isinstance(captions, Sequence):
        raise CacheError(f"{place}: caption is a {type(captions).__name__}, expected text")
    captions = tuple(captions or ())
    for name, text in [("source", facts.source), ("set", facts.set), *(("caption", text) for text in captions)]:
        if not isinstance(text, str):
            raise CacheError(f"{place}: {name} is a {type(text).__name__}, expected text")
    try:
        width, height = facts.original_size
        left, top, crop_width, crop_height = facts.crop
        size, crop = (width, height), (left, top, crop_width, crop_height)
        checked = SampleFacts(captions, facts.source, size, crop, facts.repeats, facts.weight, facts.set)
        pack_sample_row(checked, 0, 0, 0, 0)
    except (struct.error, OverflowError, TypeError, ValueError) as error:
        raise CacheError(f"{place}: its sizes, crop, repeats or weight cannot be stored: {error}") from error
    return checked


@dataclass(frozen=True)
class Added:
    """New rows, numbered after those of the base, and the samples of the next generation: runs of old and new rows."""

    arrays: IndexArrays
    runs: tuple[tuple[int, int], ...]


class IndexBuilder:
    """Collects entries and samples in compact arrays. `base` is the generation to continue or replace."""

    @guarded
    def __init__(self, base: Index | None, manifest: Manifest | None, keep_samples: bool) -> None:
        self._base = base
        self._first = base.lengths if base else dict.fromkeys(ARRAY_TYPES, 0)
        self._base_keys = KeyTable(base) if base else None
        self._keys = DigestTable()
        self._entries, self._refs, self._leaves = bytearray(), bytearray(), bytearray()
        self._entry_layouts = array("I")
        self._layouts: dict[str, int] = {}
        if base:
            self._layouts = {base.layout_text(n): n for n in range(self._first["layout_ends"])}
        self._buckets_of: dict[int, int] = {}
        self.without_bucket = 0  # samples whose latent fits no batch
        self._samples = bytearray()
        self._counts: list[tuple[int, ...]] = []
        self._same_counts: dict[tuple[int, ...], tuple[int, ...]] = {}  # nearly all samples share one of a few
        self._variants = array("I")
        self._captions = array("I")
        self._strings = DigestTable()
        self._texts, self._text_ends = bytearray(), array("Q")
        # Every entry stores its field number, so fields are kept; sets and buckets are only in samples.
        self.fields: list[str] = list(manifest.fields) if manifest else []
        self.sets: dict[str, dict[str, Any]] = {}
        self.buckets: dict[tuple[str, tuple[int, ...]], int] = {}
        self._runs: list[list[int]] = []
        self.sample_count = 0
        if keep_samples and base is not None and manifest is not None:
            self.adopt_sets(manifest)
            self.keep(0, base.sample_count)

    def adopt_sets(self, manifest: Manifest) -> None:
        """Number sets and buckets as the base does, so that its samples can be kept."""
        self.sets = {name: dict(facts) for name, facts in manifest.sets.items()}
        self.buckets = {(b["dtype"], tuple(b["shape"])): n for n, b in enumerate(manifest.buckets)}

    def keep(self, first: int, count: int) -> None:
        """List samples of the base again."""
        assert self._base is not None, "there is no base"
        self.sample_count += count
        at = 0
        for row, length in self._base.runs:
            start, end = max(first, at), min(first + count, at + length)
            if start < end:
                self._list_rows(row + start - at, end - start)
            at += length

    def _list_rows(self, first: int, count: int) -> None:
        if self._runs and sum(self._runs[-1]) == first:
            self._runs[-1][1] += count
        else:
            self._runs.append([first, count])

    def find(self, key: bytes) -> int | None:
        found = self._keys.get(key)
        return found if found is not None or self._base_keys is None else self._base_keys.find(key)

    def add_entry(self, key: bytes, field: str, layout: str, leaves: bytes, refs: Sequence[tuple[int, bytes]]) -> int:
        """Add an entry whose references are (location, hash). Returns its number."""
        number = self._layouts.setdefault(layout, len(self._layouts))
        first_ref = self._first["refs"] + len(self._refs) // REF.itemsize
        first_leaf = self._first["leaves"] + len(self._leaves)
        self._entries += pack_entry_row(key, first_ref, first_leaf, number, self.field_number(field))
        self._leaves += leaves
        for location, digest in refs:
            self._refs += location.to_bytes(8, "little") + digest
        self._entry_layouts.append(number)
        entry = self._first["entries"] + len(self._entry_layouts) - 1
        self._keys.add(key, entry)
        return entry

    def add_sample(self, entries: Mapping[str, Sequence[int]], facts: SampleFacts) -> int:
        for name in entries:
            self.field_number(name)
        counts = tuple(len(entries.get(name, ())) for name in self.fields)
        bucket = self._bucket(entries.get("latent", ()), facts)
        numbers = (len(self._captions), bucket, self._set(facts.set), self._string(facts.source))
        self._samples += pack_sample_row(facts, *numbers)
        self._captions.extend(self._string(caption) for caption in facts.captions)
        self._counts.append(self._same_counts.setdefault(counts, counts))
        self._variants.extend(entry for name in self.fields for entry in entries.get(name, ()))
        self._list_rows(self._first["samples"] + len(self._counts) - 1, 1)
        self.sample_count += 1
        return self.sample_count - 1

    def describe_set(self, name: str, facts: Mapping[str, Any]) -> None:
        self._set(name)
        self.sets[name].update(facts)

    def field_number(self, name: str) -> int:
        if name not in self.fields:
            self.fields.append(name)
        return self.fields.index(name)

    def entry_layout(self, entry: int) -> int:
        if self._base is not None and entry < self._first["entries"]:
            return self._base.entry_row(entry).layout
        return self._entry_layouts[entry - self._first["entries"]]

    def move_shards(self, shifts: Mapping[int, int]) -> None:
        """Adjust locations: the blobs of each of these new shards moved `shift` bytes towards the front."""
        refs = np.frombuffer(self._refs, REF)
        numbers = refs["location"] >> np.uint64(OFFSET_BITS)
        for shard, shift in shifts.items():
            refs["location"][numbers == shard] -= np.uint64(shift)

    def finish(self) -> Added:
        """The new rows, and the list of samples."""
        first = self._first
        layouts, layout_ends = _texts(list(self._layouts)[first["layout_ends"] :])
        samples = np.frombuffer(self._samples, SAMPLE).copy()
        samples["captions"] += np.uint64(first["captions"])
        samples["source"] += np.uint32(first["string_ends"])
        starts, variants = pack_variants(self._all_counts(), np.asarray(self._variants, "<u4"))
        samples["variants"] = starts + np.uint64(first["variants"])
        arrays = IndexArrays(
            samples=samples,
            variants=variants,
            entries=np.frombuffer(self._entries, ENTRY),
            refs=np.frombuffer(self._refs, REF),
            leaves=np.frombuffer(self._leaves, "u1"),
            layouts=layouts,
            layout_ends=layout_ends + np.uint64(first["layouts"]),
            strings=np.frombuffer(self._texts, "u1"),
            string_ends=np.asarray(self._text_ends, "<u8") + np.uint64(first["strings"]),
            captions=np.asarray(self._captions, "<u4") + np.uint32(first["string_ends"]),
        )
        return Added(arrays, tuple((row, count) for row, count in self._runs))

    def _all_counts(self) -> np.ndarray:
        """The number of variants per sample and field."""
        counts = np.zeros((len(self._counts), len(self.fields)), "<u4")
        for i, row in enumerate(self._counts):
            counts[i, : len(row)] = row
        return counts

    def _set(self, name: str) -> int:
        self.sets.setdefault(name, {})
        return list(self.sets).index(name)

    def _string(self, text: str) -> int:
        data = text.encode("utf-8", "surrogatepass")
        digest = xxhash.xxh3_128_digest(data)
        found = self._strings.get(digest)
        if found is not None and self._text(found) == data:
            return found
        self._texts += data
        self._text_ends.append(len(self._texts))
        if found is None:
            self._strings.add(digest, len(self._text_ends) - 1)
        return len(self._text_ends) - 1

    def _text(self, number: int) -> bytes:
        start = self._text_ends[number - 1] if number else 0
        return bytes(self._texts[start : self._text_ends[number]])

    def _bucket(self, latents: Sequence[int], facts: SampleFacts) -> int:
        """The bucket that all variants of the latent share."""
        buckets = {self._bucket_of_layout(self.entry_layout(entry)) for entry in latents}
        if len(buckets) > 1:
            raise CacheError(f"sample {self.sample_count} ({facts.source}): its latents differ in shape or dtype")
        if NO_BUCKET in buckets:
            self._warn_without_bucket(facts)
        return buckets.pop() if buckets else NO_BUCKET

    def _warn_without_bucket(self, facts: SampleFacts) -> None:
        if not self.without_bucket:
            warnings.warn(
                f"sample {self.sample_count} ({facts.source or 'without a source name'}): its latent has no tensor "
                'under "samples", so it belongs to no bucket and cannot be trained on',
                stacklevel=2,
            )
        self.without_bucket += 1

    def _bucket_of_layout(self, number: int) -> int:
        if number not in self._buckets_of:
            text = next(text for text, n in self._layouts.items() if n == number)
            layout = Layout(text)
            slot = layout.slot_at("samples")
            bucket = NO_BUCKET
            if slot is not None:
                spec = layout.specs[slot]
                if spec.shape[:1] != (1,):
                    raise CacheError(
                        f"a latent of shape {spec.shape} is not a single sample [1, …]; split the batch first"
                    )
                bucket = self.buckets.setdefault((spec.dtype, spec.shape[1:]), len(self.buckets))
            self._buckets_of[number] = bucket
        return self._buckets_of[number]


class KeyTable:
    """Finds the entry of a key, twenty times faster than the index after the first few lookups (8 bytes per entry)."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._asked = 0
        self._tables: list[tuple[Index, np.ndarray, array[int]]] | None = None

    def find(self, key: bytes) -> int | None:
        if self._tables is None:
            self._asked += 1
            if self._asked <= _FEW:
                return self._index.find_entry(key)
            self._tables = [_first_halves(part) for part in self._index.parts]
        wanted = int.from_bytes(key[:8], "big")
        for part, order, halves in self._tables:
            place = bisect_left(halves, wanted)
            while place < len(halves) and halves[place] == wanted:
                row = int(order[place])
                if part.key_of(row) == key:
                    return part.first["entries"] + row
                place += 1
        return None


def _first_halves(part: Index) -> "tuple[Index, np.ndarray, array[int]]":
    """The first 8 bytes of each key as a number, in key order."""
    entries = part.arrays.entries
    # A damaged order may point anywhere; `find` compares the whole key.
    order = np.minimum(part.arrays.entry_order, max(0, len(entries) - 1))
    keys = np.ascontiguousarray(entries["key"][order]).view(">u8").reshape(-1, 2)
    halves = array("Q")
    halves.frombytes(np.ascontiguousarray(keys[:, 0]).astype(np.uint64).tobytes())
    return part, order, halves


def _texts(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype="<u8") if encoded else np.empty(0, "<u8")
    return np.frombuffer(b"".join(encoded), "u1"), ends
