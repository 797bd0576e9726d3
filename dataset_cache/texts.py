"""The conditionings that the samples of a cache lack: encoding their captions, without their images.

Caches that were imported from other trainers have captions, but often no conditionings. Latents stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from ..errors import CacheError
from ..quantity import plural
from .encode import EMPTY_CAPTION, EncodeProgress, Encoder, Failure, Phase, Recipe, Settings, WriteBehind
from .format import Place
from .read import Cache, open_cache
from .upkeep import recorded_text_encoders
from .write import CacheWriter, existing_storage

_TEXT = "conditioning"
_SORTED = 1024  # captions that are sorted by length before the first of them is encoded
_SHOWN = 20


@dataclass(frozen=True)
class TextsReport:
    """What was encoded. `completed` counts the samples that have all conditionings now and lacked some before."""

    path: str
    samples: int
    completed: int = 0
    encoded: int = 0
    reused: int = 0
    uncaptioned: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # source → why its captions could not be encoded
    unknown: int = 0  # samples whose conditionings were there, and it is not recorded which text encoder made them
    stopped: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        if self.stopped:
            yield f"Stopped: {plural(self.encoded, 'caption')} encoded and kept; nothing was published"
        elif not self.completed and not self.failed:
            yield f"Unchanged: each of {plural(self.samples, 'sample')} has its conditionings"
        else:
            yield f"Encoded {plural(self.encoded, 'caption')}, {self.reused:,} reused"
            yield f"{plural(self.completed, 'sample')} of {self.samples:,} got conditionings"
        if self.uncaptioned:
            yield f"{plural(self.uncaptioned, 'sample')} without a caption got the conditioning of an empty one"
        if self.unknown:
            yield (
                f"{plural(self.unknown, 'sample')} had conditionings already, of the same size; which text encoder "
                "made them is not recorded"
            )
        if self.failed:
            yield f"{plural(len(self.failed), 'sample')} still without all conditionings:"
            yield from (f"  {source}: {reason}" for source, reason in list(self.failed.items())[:_SHOWN])


@dataclass(frozen=True)
class _Wanted:
    """The keys that samples need. `texts` are those that are not stored yet, by key."""

    samples: dict[int, list[bytes]]  # number → the key of each variant
    texts: dict[bytes, str]
    reused: int
    uncaptioned: int


def encode_captions_of(
    place: Place,
    encoder: Encoder,
    *,
    settings: Settings | None = None,
    progress: Callable[[EncodeProgress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> TextsReport:
    """Encode the captions without a conditioning of the samples of a cache, and publish them with these.

    Each distinct text is encoded once, under the key that encoding images would give it. A run that is stopped or
    fails publishes nothing, but keeps its entries for the next run. Refused if the conditionings that are there were
    made by another text encoder.
    """
    chosen = settings or Settings()
    recipe = Recipe.of_texts(encoder)
    with open_cache(existing_storage(place)) as cache:
        _refuse_other_encoder(cache, encoder)
    writer = CacheWriter(place, trim=chosen.trim_padding)
    try:
        with open_cache(place) as cache:  # which stays the published one: the writer has the lock
            wanted = _find(cache, recipe, writer.has)
            report = TextsReport(str(cache.path), len(cache), reused=wanted.reused, uncaptioned=wanted.uncaptioned)
            if not wanted.samples:
                return report
            run = _Run(cache, writer, encoder, chosen, progress, stop)
            finished = run.encode(wanted.texts)
            report = replace(report, encoded=run.encoded, stopped=not finished, unknown=run.unknown)
            if not finished:
                return report
            failed = _write(cache, writer, wanted, recipe, run.failures)
            provenance = _provenance(cache, recipe, encoder)
        if len(failed) < len(wanted.samples):
            writer.publish(provenance)
        return replace(report, completed=len(wanted.samples) - len(failed), failed=failed)
    finally:
        writer.close()


def _refuse_other_encoder(cache: Cache, encoder: Encoder) -> None:
    made = recorded_text_encoders(cache) if cache.variants(_TEXT).any() else {}
    other = next((identity for identity in made if identity != encoder.identity), None)
    if other is not None:
        own = getattr(encoder, "name", "") or encoder.identity
        raise CacheError(
            f"{cache.path.name}: its conditionings were made by the text encoder {made[other] or other}, this one is "
            f"{own}; encode with the one that made them. Nothing was changed"
        )


def _find(cache: Cache, recipe: Recipe, has: Callable[[bytes], bool]) -> _Wanted:
    counts = cache.variants(_TEXT)
    samples: dict[int, list[bytes]] = {}
    texts: dict[bytes, str] = {}
    stored: set[bytes] = set()
    uncaptioned = 0
    for number in range(len(cache)):
        captions, there = cache.captions(number) or [""], int(counts[number])
        if there >= len(captions):
            continue
        uncaptioned += not any(captions)
        known = {recipe.conditioning_key(text): text for text in captions}
        # A variant belongs to the caption at its place: those that are there, to the first ones.
        keys = [recipe.conditioning_key(text) for text in captions[there:]]
        samples[number] = cache.keys(number).get(_TEXT, []) + keys
        for key in keys:
            stored.add(key) if has(key) else texts.setdefault(key, known[key])
    empty = recipe.conditioning_key("")
    if samples and EMPTY_CAPTION not in cache.named and not has(empty):
        texts.setdefault(empty, "")
    return _Wanted(samples, texts, len(stored), uncaptioned)


class _Run:
    """Encoding texts into a writer."""

    def __init__(
        self,
        cache: Cache,
        writer: CacheWriter,
        encoder: Encoder,
        settings: Settings,
        progress: Callable[[EncodeProgress], None],
        stop: Callable[[], bool],
    ) -> None:
        self._cache, self._writer, self._encoder, self._settings = cache, writer, encoder, settings
        self._progress, self._stop = progress, stop
        there = cache.variants(_TEXT).nonzero()[0]
        self._width = _width(cache[int(there[0])].conditioning) if len(there) else None
        self.unknown = 0 if recorded_text_encoders(cache) else len(there)
        self.encoded = 0
        self.failures: dict[bytes, str] = {}

    def encode(self, texts: dict[bytes, str]) -> bool:
        """False if the user asked to stop."""
        started, done = time.monotonic(), 0
        todo = sorted(texts.items(), key=lambda item: len(item[1]))
        with WriteBehind(self._writer) as output, Phase(self._encoder, self._settings.text_batch_size) as phase:
            for start in range(0, len(todo), _SORTED):
                part = sorted(todo[start : start + _SORTED], key=lambda item: phase.length(item[1]))
                rest = iter(part)
                for made in phase.encode([text for _, text in part]):
                    if self._stop():
                        return False
                    self._put(output, [(key, value) for value, (key, _) in zip(made, rest)])
                    done += len(made)
                    seconds = time.monotonic() - started
                    self._progress(EncodeProgress("captions", done, len(todo), seconds, 0, output.bytes))
        return True

    def _put(self, output: WriteBehind, made: list[tuple[bytes, Any]]) -> None:
        self.failures |= {key: value.reason for key, value in made if isinstance(value, Failure)}
        good = [(key, value, _TEXT) for key, value in made if not isinstance(value, Failure)]
        if good and self._width not in (None, _width(good[0][1])):
            raise CacheError(
                f"{self._cache.path.name}: its conditionings are {self._width} wide, those of this text encoder "
                f"{_width(good[0][1])}; encode with the text encoder that made them. Nothing was changed"
            )
        output.put(good)
        self.encoded += len(good)


def _write(
    cache: Cache, writer: CacheWriter, wanted: _Wanted, recipe: Recipe, failures: dict[bytes, str]
) -> dict[str, str]:
    """List every sample again, with its new conditionings. Returns those that do not get any, and why."""
    failed: dict[str, str] = {}
    for name, facts in cache.sets.items():
        writer.describe_set(name, facts)
    for number, sample in enumerate(cache):
        keys, texts = cache.keys(number), wanted.samples.get(number)
        lost = [key for key in texts or () if not writer.has(key)]
        if lost:
            failed[sample.source] = failures.get(lost[0], "its caption was not encoded")
        elif texts is not None:
            keys = {**keys, _TEXT: texts}
        writer.sample(keys, sample)
    for name, key in cache.named.items():
        writer.name(name, key)
    empty = recipe.conditioning_key("")
    if EMPTY_CAPTION not in cache.named and writer.has(empty):
        writer.name(EMPTY_CAPTION, empty)
    return failed


def _provenance(cache: Cache, recipe: Recipe, encoder: Encoder) -> dict[str, Any]:
    """That of the cache, with the text encoder. What stood for the samples of a run does not stand for these."""
    run = {name: value for name, value in _table(cache.provenance, "encode").items() if name != "samples"}
    run["encoders"] = {"image": None, **_table(run, "encoders"), "text": recipe.text_encoder}
    if name := str(getattr(encoder, "name", "")):
        run["encoder_names"] = {**_table(run, "encoder_names"), "text": name}
    return {**cache.provenance, "encode": run}


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _width(conditioning: Any) -> int | None:
    """The width of a conditioning's rows, if it has the form of ComfyUI's."""
    try:
        tokens = conditioning[0][0]
    except (TypeError, IndexError, KeyError):
        return None
    return int(tokens.shape[-1]) if isinstance(tokens, torch.Tensor) and tokens.dim() else None
