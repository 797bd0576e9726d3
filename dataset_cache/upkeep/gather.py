"""Gathering: samples of open datasets, all or some, become the samples of one cache; and the names that they get.

Entries are copied by key, equal blobs stored once, unused entries left. If the datasets differ, in the given order:
- Every sample is taken. Of named entries, the first of each name is.
- A set of an earlier dataset keeps its name; a later one with other settings becomes `name (folder)`.
- Provenance keeps what all datasets agree on, and lists where the samples came from.
A copy replaces only a copy, a merge only a merge.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import CacheError
from ..format import Place, read_manifest, storage_at
from ..index import SampleFacts
from ..read import Dataset
from ..write import CacheWriter
from .copy import free_name
from .fit import check_fit, recorded_encoders, refuse_other_origin, refuse_own_input

Keys = dict[str, list[bytes]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Part:
    """A dataset to take samples from. Weight 0.5 draws half of them per epoch, 2 draws each twice, 1 is unchanged."""

    dataset: Dataset
    weight: float = 1.0


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
        copier = _Copier(writer)
        done = 0
        for part in parts:
            for number in range(len(part.dataset)):
                progress(done, total)
                copier.add(part, number)
                done += 1
            copier.add_named(part.dataset)
    published = read_manifest(target)
    assert published is not None, "the writer has just published it"
    return published.generation


class MergedNames:
    """The names that sets and named entries get. `rename_all` keeps every one apart, as `merge` does."""

    def __init__(self, rename_all: bool) -> None:
        self._rename_all = rename_all
        self.sets: dict[str, Mapping[str, Any]] = {}
        self._set_names: dict[tuple[int, float, str], str] = {}  # by part and its own name of the set
        self.named: dict[str, bytes] = {}
        self.renamed: list[str] = []

    def describe(self, part: Part, number: int) -> tuple[SampleFacts, Keys]:
        """The facts of a sample, with the name that its set has in the new cache, and its keys by field."""
        sample = part.dataset.sample(number)
        facts = replace(sample, set=self.set_name(part, sample.set))
        return facts, part.dataset.keys(number)

    def add_named(self, dataset: Dataset) -> dict[str, bytes]:
        """The names that the named entries of a dataset get, such as the empty caption."""
        added = {}
        for name, key in dataset.named.items():
            if self.named.setdefault(name, key) != key:
                if not self._rename_all:
                    continue
                name = self._free_name(name, dataset, lambda free: free not in self.named)
                self.named[name] = key
            added[name] = key
        return added

    def set_name(self, part: Part, name: str) -> str:
        """The name in the new cache of a part's set."""
        place = (id(part.dataset), part.weight, name)
        known = self._set_names.get(place)
        if known is None:
            known = self._set_names[place] = self._add_set(part, name)
        return known

    def _add_set(self, part: Part, name: str) -> str:
        facts = _weighted(part.dataset.sets.get(name, {}), part.weight)
        if self.sets.setdefault(name, facts) != facts:
            name = self._free_name(name or "main", part.dataset, lambda free: self._is_free_set(free, facts))
            self.sets[name] = facts
        return name

    def _is_free_set(self, name: str, facts: Mapping[str, Any]) -> bool:
        return name not in self.sets or (not self._rename_all and self.sets[name] == facts)

    def _free_name(self, name: str, dataset: Dataset, is_free: Callable[[str], bool]) -> str:
        folder = dataset.path.name
        free = free_name(f"{name} ({folder})", is_free, lambda number: f"{name} ({folder} {number})")
        self.renamed.append(free)
        return free


class _Copier:
    """Copies samples of open datasets into a writer."""

    def __init__(self, writer: CacheWriter) -> None:
        self._writer, self._names = writer, MergedNames(rename_all=False)

    def add(self, part: Part, number: int) -> None:
        facts, keys = self._names.describe(part, number)
        for variants in keys.values():
            for key in variants:
                self._copy(part.dataset, key)
        self._writer.describe_set(facts.set, self._names.sets[facts.set])
        self._writer.sample(keys, facts)

    def add_named(self, dataset: Dataset) -> None:
        for name, key in self._names.add_named(dataset).items():
            self._copy(dataset, key)
            self._writer.name(name, key)

    def _copy(self, dataset: Dataset, key: bytes) -> None:
        if not self._writer.has(key):
            field, parts = dataset.stored_entry(key)
            self._writer.put_split(key, parts, field)


def _weighted(facts: Mapping[str, Any], weight: float) -> dict[str, Any]:
    """The settings of a set whose samples are drawn `weight` times as often."""
    if weight == 1:
        return dict(facts)
    if facts.get("samples") is not None:
        return {**facts, "samples": max(1, round(facts["samples"] * weight))}
    return {**facts, "weight": facts.get("weight", 1.0) * weight}


def agreed_provenance(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """The provenance that all datasets share."""
    first, *others = [dataset.provenance for dataset in datasets]
    return {key: value for key, value in first.items() if all(key in p and p[key] == value for p in others)}


def _gathered_provenance(datasets: Sequence[Dataset], merged: bool) -> dict[str, Any]:
    gathered = [
        {"folder": d.path.name, "id": d.id, "generation": d.generation, "samples": len(d), **recorded_encoders(d)}
        for d in datasets
    ]
    return (
        as_merge(agreed_provenance(datasets), gathered)
        if merged
        else {**agreed_provenance(datasets), "gathered": gathered}
    )


def as_merge(agreed: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {**{key: value for key, value in agreed.items() if key != "gathered"}, "merged": parts}
