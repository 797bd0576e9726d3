"""Importing the cache of another trainer: its samples become those of a StreamCache, the rest is named in a report."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CacheError
from ...quantity import plural
from ..format import NAMES, blob_hash, is_published, split, storage_at, tensor_bytes
from ..upkeep import refuse_other_origin
from ..write import CacheWriter
from .ai_toolkit import open_ai_toolkit
from .diffusion_pipe import open_diffusion_pipe
from .found_sample import ForeignCache, FoundSample, Opener, Skipped
from .kohya import open_kohya
from .musubi import open_musubi
from .onetrainer import open_onetrainer

KINDS: dict[str, Opener] = {
    "kohya": open_kohya,
    "musubi": open_musubi,
    "ai-toolkit": open_ai_toolkit,
    "diffusion-pipe": open_diffusion_pipe,
    "onetrainer": open_onetrainer,
}
_SHOWN = 20


@dataclass(frozen=True)
class ImportReport:
    """The result of an import. `without` counts samples without a conditioning by the reason."""

    source: Path
    destination: Path
    kind: str
    samples: int
    uncaptioned: int
    without: dict[str, int]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"Imported {plural(self.samples, 'sample')} ({self.kind}) to {self.destination.name}"]
        if self.uncaptioned:
            lines.append(f"{plural(self.uncaptioned, 'sample')} without a caption: name the folder of the images")
        if self.without:
            count = sum(self.without.values())
            lines.append(
                f"{plural(count, 'sample')} without a conditioning, which training needs; the captions are kept, and "
                '"streamcache encode --captions-of" encodes them:'
            )
            lines += [f"  {number:,} × {reason}" for reason, number in self.without.items()]
        if self.skipped:
            lines.append(f"Not imported: {len(self.skipped):,}")
            lines += [f"  {text}" for text in self.skipped[:_SHOWN]]
            lines += [f"  and {len(self.skipped) - _SHOWN:,} more"] if len(self.skipped) > _SHOWN else []
        return "\n".join(lines)


def open_foreign_cache(folder: Path, images: Path | None = None, kind: str = "") -> ForeignCache:
    """The cache in a folder. Its kind is recognized by its files, unless it is named."""
    if kind and kind not in KINDS:
        raise CacheError(f"kind = {kind!r}: expected one of {', '.join(KINDS)}")
    if not folder.is_dir():
        raise CacheError(f"{folder}: no such folder; choose the folder of another trainer's cache")
    if images is not None and not images.is_dir():
        raise CacheError(f"{images}: no such folder; choose the folder of the images")
    openers = {kind: KINDS[kind]} if kind else KINDS
    found = {name: cache for name, opener in openers.items() if (cache := opener(folder, images)) is not None}
    if not found and is_published(folder):
        raise CacheError(f'{folder}: is a StreamCache already; use it as it is, or copy it with "streamcache export"')
    if not found:
        expected = ", ".join(openers)
        raise CacheError(f"{folder}: contains no cache of {expected}; choose the folder that has its files")
    if len(found) > 1:
        names = " and ".join(found)
        raise CacheError(f"{folder}: contains caches of {names}; name the one to import (--kind)")
    return next(iter(found.values()))


def import_foreign(
    source: Path,
    destination: Path,
    images: Path | None = None,
    kind: str = "",
    progress: Callable[[int, int | None], None] | None = None,
) -> ImportReport:
    """Import the cache in `source` into the cache `destination`, published once all of it has been read.

    `images` is the folder of the images and captions, if it is another. An existing cache is replaced only if it was
    imported too. `progress` is called with (samples done, None). Nothing in the source is executed or changed.
    """
    source, destination = Path(source), Path(destination)
    if source.resolve() == destination.resolve():
        raise CacheError(f"{source}: source and destination are the same folder; choose another destination")
    cache = open_foreign_cache(source, images, kind)
    provenance = {"imported": {"kind": cache.kind, "folder": source.name}}
    refuse_other_origin(storage_at(destination), provenance)
    samples = uncaptioned = 0
    without: Counter[str] = Counter()
    skipped: list[str] = []
    with CacheWriter(destination, provenance=provenance) as writer:
        for found in cache:
            if isinstance(found, Skipped):
                skipped.append(str(found))
                continue
            try:
                _store(writer, found)
            except CacheError as error:
                skipped.append(str(Skipped(found.place, str(error))))
                continue
            samples += 1
            uncaptioned += not found.facts.captions
            if not found.conditionings:
                without[found.without] += 1
            if progress is not None:
                progress(samples, None)
        if not samples:
            reason = f" ({skipped[0]})" if skipped else ""
            raise CacheError(f"{source}: contains no sample that can be imported{reason}")
    return ImportReport(source, destination, cache.kind, samples, uncaptioned, dict(without), tuple(skipped))


def _store(writer: CacheWriter, found: FoundSample) -> None:
    fields: dict[str, list[Any]] = {"latent": [{"samples": latent} for latent in found.latents]}
    if found.masks:
        fields["mask"] = found.masks
    if found.conditionings:
        fields["conditioning"] = found.conditionings
    keys = {name: [_put(writer, value, name) for value in values] for name, values in fields.items()}
    writer.sample(keys, found.facts)


def _put(writer: CacheWriter, value: Any, field: str) -> bytes:
    """Store an entry under the hash of its content, so that a later import finds what has not changed."""
    parts = split(value, field)
    digest = hashlib.blake2b(f"imported {field}\0{parts.layout}\0".encode() + parts.leaves, digest_size=16)
    for tensor in parts.tensors:
        digest.update(blob_hash(tensor_bytes(tensor), NAMES[tensor.dtype], tuple(tensor.shape)))
    writer.put_split(digest.digest(), parts, field, copied=False)
    return digest.digest()
