"""Assemble: the samples of the next generation, out of entries that are all stored by now."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from hashlib import blake2b
from typing import Any

from ..sources import THUMBNAIL, Excluded, Origin
from ..write import SampleFacts
from .encode_captions import named_captions
from .recipe import Keys, Planned
from .work import Work

_LISTED = 1000  # excluded files that the manifest names


class Assembly:
    """Adds a run's samples to its writer. `digest` tells whether they differ from those of another run."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.included: list[Planned] = []
        self._digest = blake2b(digest_size=16)
        self._references: dict[str, int] = {}

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def add_all(self) -> None:
        excluded: dict[Excluded, None] = {}  # a picture has a sample for each resolution, and is named once
        for sample in self.work.layout.samples:
            problem = self._add(sample)
            if problem:
                excluded[Excluded(sample.name, problem)] = None
        self.work.report.excluded += excluded
        sets = self.work.plan.sets
        for name, facts in sets.items():
            self.work.writer.describe_set(name, facts)
        for name, caption in named_captions(self.work.plan):
            key = self.work.plan.recipe.conditioning_key(caption)
            if self.work.writer.has(key):
                self.work.writer.name(name, key)
                self._references["conditioning"] = self._references.get("conditioning", 0) + 1
        self._update([sets, list(named_captions(self.work.plan))])
        self._tell()

    def provenance(self) -> dict[str, Any]:
        """What the manifest says about how the dataset was made."""
        plan, excluded = self.work.plan, self.work.report.excluded
        listed = [{"source": e.source, "reason": e.reason} for e in excluded[:_LISTED]]
        facts = {
            "encoders": plan.recipe.describe(),
            "encoder_names": {part: name for part, name in plan.encoder_names() if name},
            "settings": {"thumbnail": plan.settings.thumbnail, "background": list(plan.settings.background)},
            "sources": [source.describe() for source in self.work.plan.survey.sources],
            "excluded": {"count": len(excluded), "files": listed},
            "samples": self.digest,
        }
        return json.loads(json.dumps(facts))  # as it comes back from the manifest, to be compared

    def origins(self, known: Collection[str]) -> Iterator[tuple[str, str, Origin]]:
        """What entries are made of, for samples that are not known, or had any made in this run."""
        made = self.work.made_of
        for sample in self.included:
            if sample.origin in made or sample.origin not in known:
                for name, origin in self.work.plan.recipe.origins(sample).items():
                    yield sample.origin, name, origin

    def _add(self, sample: Planned) -> str:
        """Add one sample, or return why not."""
        failures, writer, item = self.work.failures, self.work.writer, sample.item
        if sample.origin in failures:
            return failures[sample.origin]
        placement = sample.placement()
        keys = self.work.plan.recipe.keys(sample, placement)
        captions, problem = list(item.captions), ""
        if "conditioning" in keys:
            good = [(key, text) for key, text in zip(keys["conditioning"], captions) if writer.has(key)]
            lost = next((key for key in keys["conditioning"] if not writer.has(key)), None)
            problem = "" if good else f"its caption: {failures.get(lost, 'was not encoded')}"
            keys["conditioning"], captions = [key for key, _ in good], [text for _, text in good]
        lost = [key for name, found in keys.items() if name != THUMBNAIL for key in found if not writer.has(key)]
        if problem or lost:
            return problem or failures.get(lost[0], "its file changed during the run; encode again")
        self._store(sample, keys, captions, placement.crop)
        return ""

    def _store(self, sample: Planned, keys: Keys, captions: list[str], crop: tuple[int, int, int, int]) -> None:
        item, source = sample.item, sample.item.source
        self.work.writer.sample(
            keys, SampleFacts(captions, sample.name, sample.size, crop, item.repeats, source.weight, source.set)
        )
        self.included.append(sample)
        for name, found in keys.items():
            self._references[name] = self._references.get(name, 0) + len(found)
        plain = {name: [key.hex() for key in found] for name, found in keys.items()}
        self._update([plain, captions, sample.name, sample.size, crop, item.repeats, source.weight, source.set])

    def _update(self, value: Any) -> None:
        self._digest.update(json.dumps(value, sort_keys=True).encode())

    def _tell(self) -> None:
        report = self.work.report
        report.count(self.included)
        encoded = report.encoded
        report.reused = {name: max(0, count - encoded.get(name, 0)) for name, count in self._references.items()}
