"""Merging: samples of several datasets are copied into one cache. Entries keep their keys; nothing is encoded.

`merge` makes a new cache of whole caches; `gather` writes samples of open datasets, all or some, to a cache. Both copy
entries by key, store equal blobs once, and leave unused entries behind. If the sources differ, in the given order:
- Equal keys mean equal content: a key that is stored already is not copied again.
- A set of an earlier source keeps its name; a later one with other settings becomes `name (folder)`.
- Provenance keeps what all sources agree on, and lists where the samples came from.
- `merge` takes a sample that an earlier source has too only once, and renames conflicting named entries like sets.
- `gather` takes every sample; of named entries the first of each name.
Datasets whose shapes differ are refused, and so is a result in place of one of its own sources or of a cache that was
made in another way: a merge replaces only a merge, a copy only a copy.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import CacheError
from ...quantity import plural
from ..address import Address
from ..format import Manifest, Place, SampleFacts, Storage, read_manifest, storage_at
from ..read import Cache, Dataset
from ..write import CacheWriter, existing_storage, leased_manifest, open_checked
from .copy import free_name, require_new
from .fit import check_fit, recorded_encoders
from .origin import refuse_other_origin, refuse_own_input

IF_EXISTS = ("update", "refuse")
Keys = dict[str, list[bytes]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Part:
    """A dataset to take samples from. Weight 0.5 draws half of them per epoch, 2 draws each twice, 1 is unchanged."""

    dataset: Dataset
    weight: float = 1.0


@dataclass(frozen=True)
class MergeReport:
    """The result of `merge`. `repeated` samples were in an earlier source too."""

    destination: Path | Address
    generation: str
    sources: int
    samples: int
    repeated: int
    entries: int
    renamed: tuple[str, ...]  # sets and named entries whose name was taken
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"Merged {plural(self.sources, 'cache')} into {self.destination.name}: {plural(self.samples, 'sample')}"
        return text + (f", {plural(self.repeated, 'duplicate')} skipped" if self.repeated else "")


def merge(
    sources: Sequence[Place], destination: Place, progress: Progress | None = None, if_exists: str = "refuse"
) -> MergeReport:
    """Write the samples of all `sources`, with variants, captions, sets and named entries, to a new cache.

    With `if_exists="update"`, a cache that an earlier merge made is replaced; its entries are reused. That is the
    default of Merge Datasets, because a workflow is queued many times; here, an existing cache is refused.
    One entry is in memory at a time. `progress` is called with (samples done, total). Every copied tensor is compared
    with its hash: a damaged source is refused, and the next attempt reuses the entries copied so far.
    """
    if not sources:
        raise CacheError("merge: name at least one cache")
    storages = [existing_storage(source) for source in sources]
    target = storage_at(destination)
    refuse_own_input(target, [storage.path for storage in storages])
    if if_exists not in IF_EXISTS:
        raise CacheError(f"if_exists = {if_exists!r}: expected one of {', '.join(IF_EXISTS)}")
    if if_exists == "refuse":
        require_new(target)
    with ExitStack() as stack:
        datasets = [_open(storage, stack) for storage in storages]
        provenance, parts = _merged_provenance(datasets), [Part(dataset) for dataset in datasets]
        refuse_other_origin(target, provenance)
        warnings = check_fit(datasets)
        with CacheWriter(target, provenance=provenance) as writer:
            copier = _Copier(writer, rename_all=True)
            repeated = _copy_distinct(parts, copier, progress)
    published = _published(target)
    return MergeReport(
        destination=target.path,
        generation=published.generation,
        sources=len(parts),
        samples=published.counts["samples"],
        repeated=repeated,
        entries=published.counts["entries"],
        renamed=tuple(copier.renamed),
        warnings=tuple(warnings),
    )


def _copy_distinct(parts: Sequence[Part], copier: "_Copier", progress: Progress | None) -> int:
    """Copy all parts with their sets and named entries. Returns how many samples were in an earlier part too."""
    total = sum(len(part.dataset) for part in parts)
    repeated = done = 0
    seen: set[bytes] = set()
    for part in parts:
        for name in part.dataset.sets:
            copier.set_name(part, name)
        own: set[bytes] = set()  # a sample that one source lists twice is kept twice
        for number in range(len(part.dataset)):
            facts, keys = copier.describe(part, number)
            identity = _identity(facts, keys)
            own.add(identity)
            if identity in seen:
                repeated += 1
            else:
                copier.add(part.dataset, facts, keys)
            done += 1
            if progress is not None:
                progress(done, total)
        seen |= own
        copier.add_named(part.dataset)
    return repeated


def gather(
    parts: Sequence[Part],
    path: Place,
    progress: Progress = lambda done, total: None,
    merged: bool = False,
    warn: Callable[[str], None] = lambda text: None,
) -> str:
    """Make the samples of all parts, in order, the samples of the cache at `path`. Returns its new generation.

    `merged` records a merge also of a single part. An existing cache is replaced if it was made so.
    One entry is in memory at a time. `progress` is called before each sample with (samples done, total), `warn` with
    each doubt whether the datasets fit together.
    """
    total = sum(len(part.dataset) for part in parts)
    if not total:
        raise CacheError(f"{storage_at(path).path.name}: no samples to save; choose a dataset with samples")
    target, datasets = storage_at(path), [part.dataset for part in parts]
    provenance = _gathered_provenance(datasets, merged)
    refuse_own_input(target, [dataset.path for dataset in datasets])
    refuse_other_origin(target, provenance)
    for text in check_fit(datasets):
        warn(text)
    with CacheWriter(target, provenance=provenance) as writer:
        copier = _Copier(writer, rename_all=False)
        done = 0
        for part in parts:
            for number in range(len(part.dataset)):
                progress(done, total)
                copier.add(part.dataset, *copier.describe(part, number))
                done += 1
            copier.add_named(part.dataset)
    return _published(target).generation


class _Copier:
    """Copies samples of open datasets into a writer. `rename_all` keeps every set and name apart, as `merge` does."""

    def __init__(self, writer: CacheWriter, rename_all: bool) -> None:
        self._writer = writer
        self._rename_all = rename_all
        self._sets: dict[str, Mapping[str, Any]] = {}
        self._set_names: dict[tuple[int, str], str] = {}  # by part and its own name of the set
        self._named: dict[str, bytes] = {}
        self.renamed: list[str] = []

    def describe(self, part: Part, number: int) -> tuple[SampleFacts, Keys]:
        """The facts of a sample, with the name that its set has in the new cache, and its keys by field."""
        sample = part.dataset.sample(number)
        facts = replace(sample, set=self.set_name(part, sample.set))
        return facts, part.dataset.keys(number)

    def add(self, dataset: Dataset, facts: SampleFacts, keys: Keys) -> None:
        for variants in keys.values():
            for key in variants:
                self._copy(dataset, key)
        self._writer.sample(keys, facts)

    def add_named(self, dataset: Dataset) -> None:
        """Copy the named entries, such as the empty caption."""
        for name, key in dataset.named.items():
            if self._named.setdefault(name, key) != key:
                if not self._rename_all:
                    continue
                name = self._free_name(name, dataset, lambda free: free not in self._named)
                self._named[name] = key
            self._copy(dataset, key)
            self._writer.name(name, key)

    def set_name(self, part: Part, name: str) -> str:
        """The name in the new cache of a part's set, described there on first use."""
        known = self._set_names.get((id(part), name))
        if known is None:
            known = self._set_names[id(part), name] = self._add_set(part, name)
        return known

    def _add_set(self, part: Part, name: str) -> str:
        facts = _weighted(part.dataset.sets.get(name, {}), part.weight)
        if self._sets.setdefault(name, facts) != facts:
            name = self._free_name(name or "main", part.dataset, lambda free: self._is_free_set(free, facts))
            self._sets[name] = facts
        self._writer.describe_set(name, facts)
        return name

    def _is_free_set(self, name: str, facts: Mapping[str, Any]) -> bool:
        return name not in self._sets or (not self._rename_all and self._sets[name] == facts)

    def _free_name(self, name: str, dataset: Dataset, is_free: Callable[[str], bool]) -> str:
        folder = dataset.path.name
        free = free_name(f"{name} ({folder})", is_free, lambda number: f"{name} ({folder} {number})")
        self.renamed.append(free)
        return free

    def _copy(self, dataset: Dataset, key: bytes) -> None:
        if not self._writer.has(key):
            field, parts = dataset.stored_entry(key)
            self._writer.put_split(key, parts, field)


def _open(storage: Storage, stack: ExitStack) -> Cache:
    """A cache whose index is fully checked; its files are kept until the stack closes."""
    checked = open_checked(storage, stack.enter_context(leased_manifest(storage)))
    return Cache(storage, checked.manifest, checked.index)


def _published(place: Place) -> Manifest:
    manifest = read_manifest(place)
    assert manifest is not None, "the writer has just published it"
    return manifest


def _weighted(facts: Mapping[str, Any], weight: float) -> dict[str, Any]:
    """The settings of a set whose samples are drawn `weight` times as often."""
    if weight == 1:
        return dict(facts)
    if facts.get("samples") is not None:
        return {**facts, "samples": max(1, round(facts["samples"] * weight))}
    return {**facts, "weight": facts.get("weight", 1.0) * weight}


def _agreed(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """The provenance that all datasets share."""
    first, *others = [dataset.provenance for dataset in datasets]
    return {key: value for key, value in first.items() if all(key in p and p[key] == value for p in others)}


def _merged_provenance(datasets: Sequence[Dataset]) -> dict[str, Any]:
    merged = [
        {"folder": d.path.name, "id": d.id, "generation": d.generation, "provenance": d.provenance} for d in datasets
    ]
    return _as_merge(_agreed(datasets), merged)


def _gathered_provenance(datasets: Sequence[Dataset], merged: bool) -> dict[str, Any]:
    gathered = [
        {"folder": d.path.name, "id": d.id, "generation": d.generation, "samples": len(d), **recorded_encoders(d)}
        for d in datasets
    ]
    return _as_merge(_agreed(datasets), gathered) if merged else {**_agreed(datasets), "gathered": gathered}


def _as_merge(agreed: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {**{key: value for key, value in agreed.items() if key != "gathered"}, "merged": parts}


def _identity(facts: SampleFacts, keys: Keys) -> bytes:
    """A hash of everything that makes a sample what it is."""
    numbers = [*facts.original_size, *facts.crop, facts.repeats, facts.weight]
    entries = [[name, [key.hex() for key in of_field]] for name, of_field in sorted(keys.items())]
    text = json.dumps([entries, list(facts.captions), facts.source, numbers, facts.set])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
