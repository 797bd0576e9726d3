"""Gathering: samples of datasets that are open, all or some of them, become the samples of a cache.

Entries keep their keys, so that encoding to that cache later finds them. Where two datasets describe a set differently,
the later one's is called `name (folder)`. A dataset's weight says how often its samples are drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import CacheError
from ..format import read_manifest
from ..read import Dataset, Sample
from ..write import CacheWriter


@dataclass(frozen=True)
class Part:
    """A dataset to take samples from. A weight of 0.5 draws half of them each epoch, 2 each twice; 1 as before."""

    dataset: Dataset
    weight: float = 1.0


def gather(
    parts: Sequence[Part], path: str | Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> str:
    """Make the samples of all parts, in order, what the cache at `path` holds. Returns its new generation.

    One entry is in memory at a time. `progress` is called with (samples done, samples in all).
    """
    total = sum(len(part.dataset) for part in parts)
    if not total:
        raise CacheError(f"{Path(path).name}: there is no sample to save; choose a dataset that has some")
    with CacheWriter(path, provenance=_provenance([part.dataset for part in parts])) as writer:
        gatherer = _Gatherer(writer)
        done = 0
        for part in parts:
            for number in range(len(part.dataset)):
                progress(done, total)
                gatherer.take(part, number)
                done += 1
            gatherer.take_names(part.dataset)
    return read_manifest(Path(path)).generation


class _Gatherer:
    def __init__(self, writer: CacheWriter) -> None:
        self._writer = writer
        self._sets: dict[str, dict[str, Any]] = {}
        self._renamed: dict[tuple[int, str], str] = {}
        self._names: set[str] = set()

    def take(self, part: Part, number: int) -> None:
        dataset = part.dataset
        sample, keys = dataset.sample(number), dataset.keys(number)
        for field, variants in keys.items():
            for key in variants:
                if not self._writer.has(key):
                    self._writer.put(key, dataset.entry(key), field)
        self._writer.sample(keys, replace(sample, set=self._set(part, sample)))

    def take_names(self, dataset: Dataset) -> None:
        """Named entries, such as the empty caption. An earlier dataset's stays."""
        for name, key in dataset.named.items():
            if name not in self._names:
                self._names.add(name)
                self._writer.put(key, dataset.entry(key), "conditioning")
                self._writer.name(name, key)

    def _set(self, part: Part, sample: Sample) -> str:
        known = self._renamed.get((id(part), sample.set))
        if known is not None:
            return known
        facts = dict(part.dataset.sets.get(sample.set, {}))
        if part.weight != 1:
            _weigh(facts, part.weight)
        name = sample.set
        if self._sets.setdefault(name, facts) != facts:
            name, count = f"{sample.set or 'main'} ({part.dataset.path.name})", 2
            while self._sets.setdefault(name, facts) != facts:
                name, count = f"{sample.set or 'main'} ({part.dataset.path.name} {count})", count + 1
        self._renamed[id(part), sample.set] = name
        self._writer.describe_set(name, facts)
        return name


def _weigh(facts: dict[str, Any], weight: float) -> None:
    if facts.get("samples") is not None:
        facts["samples"] = max(1, round(facts["samples"] * weight))
    else:
        facts["weight"] = facts.get("weight", 1.0) * weight


def _provenance(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """What all of them say, and where each came from."""
    first = datasets[0].provenance
    agreed = {key: value for key, value in first.items() if all(d.provenance.get(key) == value for d in datasets)}
    origins = [{"folder": d.path.name, "id": d.id, "generation": d.generation, "samples": len(d)} for d in datasets]
    return {**agreed, "gathered": origins}
