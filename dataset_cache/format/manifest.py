"""The manifest, `dataset.json`: what a generation consists of. It is written last, in one atomic step.

The generation is the hash of the manifest's body, so the same content published twice is the same generation.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import CacheError
from ..address import Address
from .shard import SHARD_NAME, ShardFile
from .storage import Place, Stamp, storage_at
from .tensors import dtype_named

SHARDS = "shards"

ASIDE_FIELDS = frozenset({"thumbnail"})  # kept in separate shards, so that training does not read past them
Key = str | bytes

MANIFEST = "dataset.json"
FORMAT = 1
SUPPORTED_FEATURES: frozenset[str] = frozenset()
DAMAGED = "damaged"  # why `repair` dropped an entry
_DROPPED = "dropped"  # its key in `Manifest.extra`
_MAX_BYTES = 256 << 20
_HEX = re.compile(r"[0-9a-f]{32}")
_INDEX_NAME = re.compile(r"index-([0-9a-f]{32})\.safetensors")


@dataclass(frozen=True)
class Manifest:
    """The body of `dataset.json`. `extra` contains keys that this version does not know; they survive a rewrite."""

    id: str
    index_bytes: int
    index_hash: str
    shards: tuple[ShardFile, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    buckets: tuple[dict[str, Any], ...] = ()
    sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    next_shard: int = 0
    requires: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def generation(self) -> str:
        return hashlib.blake2b(_canonical(self._body()), digest_size=16).hexdigest()

    @property
    def index_name(self) -> str:
        return index_name(self.generation)

    def _body(self) -> dict[str, Any]:
        body = {"format": FORMAT, **asdict(self)}
        return {**body.pop("extra"), **body}

    def to_json(self) -> bytes:
        stamp = {"generation": self.generation, "published": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        return json.dumps({"format": FORMAT, **stamp, **self._body()}, indent=1).encode()


def index_name(generation: str) -> str:
    return f"index-{generation}.safetensors"


def index_generation(name: str) -> str | None:
    """The generation of an index file, from its name."""
    match = _INDEX_NAME.fullmatch(name)
    return match[1] if match else None


def write_manifest(place: Place, manifest: Manifest) -> None:
    storage_at(place).replace(MANIFEST, manifest.to_json())


def manifest_stamp(place: Place) -> Stamp | None:
    """Changes whenever a manifest is published; None if there is none. Cheaper than reading it."""
    try:
        status = storage_at(place).stat(MANIFEST)
    except CacheError:
        return None
    return None if status is None else status.stamp


def is_published(place: Place) -> bool:
    """Whether a folder contains a manifest. False also if reading is not permitted.

    A link counts, so that opening the cache reports why it is refused.
    """
    try:
        status = storage_at(place).stat(MANIFEST)
    except CacheError:
        return False
    return status is not None and status.kind in ("file", "link")


def published_at(place: Place) -> float:
    """When the manifest was written, in seconds since 1970; 0 if nothing was published."""
    status = storage_at(place).stat(MANIFEST)
    return 0.0 if status is None else status.modified


def read_manifest(place: Place) -> Manifest | None:
    """The published manifest, checked; None if nothing was published."""
    storage = storage_at(place)
    path = storage.path / MANIFEST
    if storage.stat(MANIFEST) is None:
        return None
    file = storage.open(MANIFEST)
    if file.size > _MAX_BYTES:
        raise CacheError(f"{path}: {file.size:,} bytes, too large for a manifest")
    text = bytes(file.read(0, file.size))  # outside the `try`: an unreadable file is not a damaged one
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "is empty" if not text.strip(b"\0 \n") else f"is not JSON: {error}"
        raise CacheError(
            f"{path}: {what}; restore it from a copy of the folder, or move the folder away and save again"
        ) from error
    return _parse(body, path)


def _parse(body: Any, path: Path | Address) -> Manifest:
    if not isinstance(body, dict) or "format" not in body:
        raise CacheError(f"{path}: is not the manifest of a StreamCache dataset")
    _check_version(body, path)
    stated = body.pop("generation", None)
    body.pop("published", None)
    body.pop("format")
    known = {f.name for f in fields(Manifest)} - {"extra"}
    extra = {key: body.pop(key) for key in list(body) if key not in known}
    try:
        shards = tuple(_parse_shard(shard) for shard in body.pop("shards"))
        for name in ("fields", "buckets", "requires"):
            body[name] = tuple(body[name])
        manifest = Manifest(**body, shards=shards, extra=extra)
        generation = manifest.generation
        # A body that matches its hash was written by a writer; the checks below guard against a hostile one.
        if generation != stated:
            raise CacheError(
                f"{path}: was edited after it was written; restore it, or remove the cache and save it again"
            )
        _check_values(manifest, path)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CacheError(f"{path}: is damaged: {error!r}") from error
    return manifest


def _check_version(body: dict[str, Any], path: Path | Address) -> None:
    version = body["format"]
    if type(version) is not int or version < 1:
        raise CacheError(f"{path}: invalid format {version!r}")
    required = body.get("requires")
    if required is not None and (not isinstance(required, list) or not all(isinstance(name, str) for name in required)):
        raise CacheError(f"{path}: requires {str(required)[:100]!r}, expected a list of names")
    missing = [feature for feature in required or () if feature not in SUPPORTED_FEATURES]
    if version > FORMAT or missing:
        what = f"format {version}" if version > FORMAT else f"the features {missing}"
        raise CacheError(
            f"{path}: needs {what}, but this StreamCache reads format {FORMAT}; update StreamCache to open it"
        )


def _parse_shard(shard: dict[str, Any]) -> ShardFile:
    return ShardFile(shard["file"], shard["bytes"], shard["hash"])


def _check_values(manifest: Manifest, path: Path | Address) -> None:
    wrong = [s.file for s in manifest.shards if not isinstance(s.file, str) or not SHARD_NAME.fullmatch(s.file)]
    if wrong:
        raise CacheError(f"{path}: lists the shard {wrong[0]!r}, which is not a valid shard name")
    numbers = [
        manifest.index_bytes,
        manifest.next_shard,
        *(s.bytes for s in manifest.shards),
        *manifest.counts.values(),
        *(bucket["samples"] for bucket in manifest.buckets),
    ]
    if any(type(n) is not int or not 0 <= n < 1 << 60 for n in numbers):
        raise CacheError(f"{path}: contains an invalid count")
    hashes = [manifest.id, manifest.index_hash, *(s.hash for s in manifest.shards), *manifest.named.values()]
    if not all(isinstance(h, str) and _HEX.fullmatch(h) for h in hashes):
        raise CacheError(f"{path}: contains an invalid hash")
    if not all(isinstance(name, str) and name for name in manifest.fields):
        raise CacheError(f"{path}: contains a field without a name")
    if not all(isinstance(facts, dict) for facts in (manifest.provenance, *manifest.sets.values())):
        raise CacheError(f"{path}: contains an invalid set or provenance")
    for bucket in manifest.buckets:
        dtype_named(bucket["dtype"])
        if not all(type(n) is int and 0 <= n < 1 << 60 for n in bucket["shape"]):
            raise CacheError(f"{path}: contains a bucket with the invalid shape {str(bucket['shape'])[:100]}")


def plain_json(value: Any, place: str) -> dict[str, Any]:
    """The value as it will be read back: keys are strings, tuples are lists. Refuses what JSON cannot represent."""
    try:
        text = json.dumps(dict(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise CacheError(
            f"{place}: cannot be written as JSON: {error}; use strings, numbers, lists and dicts"
        ) from error
    return json.loads(text)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest_key(key: Key) -> bytes:
    """The 16 bytes under which an entry is stored: the hash of a string, or 16 bytes unchanged."""
    if isinstance(key, str):
        return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if len(key) != 16:
        raise CacheError(f"a key is a string or 16 bytes, not {len(key)} bytes")
    return key


def dropped_keys(manifest: Manifest) -> dict[bytes, str]:
    """The entries that `repair` dropped and that were not stored again: key → reason."""
    return {bytes.fromhex(key): why for key, why in _known(manifest.extra).items()}


def remember_dropped(extra: Mapping[str, Any], keys: Iterable[bytes], why: str) -> dict[str, Any]:
    """`Manifest.extra` with these keys marked as dropped."""
    return {**extra, _DROPPED: {**_known(extra), **{key.hex(): why for key in keys}}}


def forget_stored(extra: Mapping[str, Any], is_stored: Callable[[bytes], bool]) -> dict[str, Any]:
    """`Manifest.extra` without the dropped keys that were stored again."""
    kept = {key: why for key, why in _known(extra).items() if not is_stored(bytes.fromhex(key))}
    return {**{name: value for name, value in extra.items() if name != _DROPPED}, **({_DROPPED: kept} if kept else {})}


def _known(extra: Mapping[str, Any]) -> dict[str, str]:
    """The dropped keys as hex digits with their reason. Anything else under that name is ignored."""
    found = extra.get(_DROPPED)
    rows = found.items() if isinstance(found, dict) else ()
    return {key: str(why) for key, why in rows if _HEX.fullmatch(key)}
