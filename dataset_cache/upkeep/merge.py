"""Merging: several datasets become one. Entries are copied by key, equal blobs are stored once, nothing is encoded.

Rules where the sources differ, in the order in which they are given:
- A key that is there already is not copied again: equal keys mean equal content.
- A sample that an earlier source has too, equal in every respect, is taken once.
- A name or set of an earlier source stays. A different one of the same name is called `name (folder)`.
- Provenance holds what all sources agree on, and `merged`, which says for every source what it said.
- Entries that no sample and no name uses are left behind.
"""

import hashlib
import json
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import CacheError
from ..format import (
    Layout,
    SampleFacts,
    Split,
    TensorSpec,
    blob_hash,
    dtype_named,
    layout_texts,
    read_manifest,
    split_location,
    unpack_variants,
)
from ..write import CacheWriter, CheckedGeneration, existing_folder, leased_manifest, open_checked
from .copy import require_new


@dataclass(frozen=True)
class MergeReport:
    """What came together. `repeated` samples were in an earlier source too."""

    destination: Path
    generation: str
    sources: int
    samples: int
    repeated: int
    entries: int
    renamed: tuple[str, ...]  # sets and named entries that met another of their name

    def __str__(self) -> str:
        text = f"Merged {self.sources:,} datasets into {self.destination.name}: {self.samples:,} samples"
        return text + (f", {self.repeated:,} that several had taken once" if self.repeated else "")


def merge(
    sources: Sequence[str | Path], destination: str | Path, progress: Callable[[int, int], None] | None = None
) -> MergeReport:
    """Write the samples of all `sources`, with variants, captions, sets and named entries, to a new dataset.

    One entry is in memory at a time. `progress` is called with (samples done, samples in all). Everything copied is
    compared with its hash: a damaged source is refused, and what was copied is reused by the next attempt.
    """
    if not sources:
        raise CacheError("merge: name at least one dataset")
    folders = [existing_folder(source) for source in sources]
    target = require_new(destination)
    with ExitStack() as stack:
        manifests = [stack.enter_context(leased_manifest(folder)) for folder in folders]
        parts = [_Source(open_checked(*pair)) for pair in zip(folders, manifests, strict=True)]
        with CacheWriter(target, provenance=_provenance(parts)) as writer:
            merger = _Merger(writer, sum(part.count for part in parts), progress)
            for part in parts:
                merger.take(part)
    published = read_manifest(target)
    counts = published.counts
    return MergeReport(
        target, published.generation, len(parts), counts["samples"], merger.repeated, counts["entries"], merger.renamed
    )


class _Source:
    """One dataset, its samples and entries in the form in which they are stored."""

    def __init__(self, current: CheckedGeneration) -> None:
        self.current, self.manifest = current, current.manifest
        self.count = len(current.arrays.samples)
        self._texts = layout_texts(current.arrays)
        self._layouts = [Layout(text) for text in self._texts]
        entries = current.arrays.entries
        self._leaf_edges = np.append(entries["leaves"], np.uint64(len(current.arrays.leaves))).astype(np.int64)

    def samples(self) -> Iterator[tuple[SampleFacts, dict[str, list[int]]]]:
        """Every sample's facts and, per field, its entries."""
        fields, sets = self.manifest.fields, list(self.manifest.sets)
        counts, flat = unpack_variants(self.current.arrays, len(fields))
        position, index = 0, self.current.index
        for i, row in enumerate(counts.tolist()):
            entries = {}
            for name, count in zip(fields, row, strict=True):
                if count:
                    entries[name] = flat[position : position + count].tolist()
                position += count
            yield index.sample_facts(i, sets), entries

    def key(self, entry: int) -> bytes:
        return self.current.index.key_of(entry)

    def field(self, entry: int) -> str:
        return self.manifest.fields[int(self.current.arrays.entries["field"][entry])]

    def parts(self, entry: int) -> Split:
        """An entry with its tensors in memory. Types that nothing here can rebuild are copied all the same."""
        row = self.current.arrays.entries[entry]
        number, first = int(row["layout"]), int(row["refs"])
        leaves = self.current.arrays.leaves[self._leaf_edges[entry] : self._leaf_edges[entry + 1]].tobytes()
        specs = self._layouts[number].specs
        return Split(self._texts[number], leaves, [self._tensor(first + n, spec) for n, spec in enumerate(specs)])

    def _tensor(self, ref: int, spec: TensorSpec) -> torch.Tensor:
        stored = self.current.arrays.refs[ref]
        shard, offset = split_location(int(stored["location"]))
        data = self.current.files.file(shard).read(offset, spec.nbytes)
        if blob_hash(memoryview(data), spec.dtype, spec.shape) != stored["hash"].tobytes():
            raise CacheError(
                f"{self.current.folder}: {self.manifest.shards[shard].file} is damaged at {offset:,}; "
                f'run "streamcache verify --repair {self.current.folder}" first'
            )
        if not data:
            return torch.empty(spec.shape, dtype=dtype_named(spec.dtype))
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype_named(spec.dtype)).reshape(spec.shape)


class _Merger:
    """Copies one source after the other into a writer."""

    def __init__(self, writer: CacheWriter, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._writer, self._total, self._progress = writer, total, progress
        self._seen: set[bytes] = set()
        self._sets: dict[str, Any] = {}
        self._named: dict[str, str] = {}
        self._done = self.repeated = 0
        self.renamed: tuple[str, ...] = ()

    def take(self, source: _Source) -> None:
        names = {name: self._set(name, facts, source) for name, facts in source.manifest.sets.items()}
        own: set[bytes] = set()  # a sample that a source lists twice is meant to be there twice
        for facts, entries in source.samples():
            keys = {name: [source.key(entry) for entry in numbers] for name, numbers in entries.items()}
            identity = _identity(facts, keys, names[facts.set])
            own.add(identity)
            if identity in self._seen:
                self.repeated += 1
            else:
                self._add(source, facts, entries, keys, names[facts.set])
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total)
        self._seen |= own
        for name, key in source.manifest.named.items():
            self._name(name, key, source)

    def _add(
        self,
        source: _Source,
        facts: SampleFacts,
        entries: dict[str, list[int]],
        keys: dict[str, list[bytes]],
        group: str,
    ) -> None:
        for numbers in entries.values():
            for entry in numbers:
                self._copy(source, entry)
        self._writer.sample(keys, replace(facts, set=group))

    def _copy(self, source: _Source, entry: int) -> None:
        if not self._writer.has(source.key(entry)):
            self._writer.put_split(source.key(entry), source.parts(entry), source.field(entry))

    def _set(self, name: str, facts: dict[str, Any], source: _Source) -> str:
        if self._sets.setdefault(name, facts) != facts:
            name = self._free_name(name, source, self._sets)
            self._sets[name] = facts
        self._writer.describe_set(name, facts)
        return name

    def _name(self, name: str, key: str, source: _Source) -> None:
        self._copy(source, source.current.index.find_entry(bytes.fromhex(key)))
        if self._named.setdefault(name, key) != key:
            name = self._free_name(name, source, self._named)
            self._named[name] = key
        self._writer.name(name, bytes.fromhex(key))

    def _free_name(self, name: str, source: _Source, taken: Container[str]) -> str:
        free, number = f"{name} ({source.current.folder.name})", 2
        while free in taken:
            free, number = f"{name} ({source.current.folder.name} {number})", number + 1
        self.renamed += (free,)
        return free


def _provenance(sources: Sequence[_Source]) -> dict[str, Any]:
    said = [source.manifest.provenance for source in sources]
    agreed = {
        key: value for key, value in said[0].items() if all(key in other and other[key] == value for other in said)
    }
    merged = [
        {"folder": s.current.folder.name, "id": s.manifest.id, "generation": s.manifest.generation, "provenance": p}
        for s, p in zip(sources, said, strict=True)
    ]
    return {**agreed, "merged": merged}


def _identity(facts: SampleFacts, keys: dict[str, list[bytes]], group: str) -> bytes:
    """A hash of everything that makes a sample what it is."""
    numbers = [*facts.original_size, *facts.crop, facts.repeats, facts.weight]
    entries = [[name, [key.hex() for key in of_field]] for name, of_field in sorted(keys.items())]
    text = json.dumps([entries, list(facts.captions), facts.source, numbers, group])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
