"""CacheWriter: takes samples as a stream, stores each blob once, publishes in one step."""

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

from ...errors import CacheError
from ..format import (
    ASIDE,
    ASIDE_FIELDS,
    DATA,
    SHARDS,
    Key,
    Manifest,
    Place,
    Split,
    Trimmer,
    digest_key,
    forget_stored,
    plain_json,
    read_manifest,
    split,
    storage_at,
    trim_split,
)
from ..index import SampleFacts, open_index
from .blob_store import BlobStore, content_key
from .checked import CheckedGeneration, lost_shards, open_checked, open_quickly, without_lost_shards
from .growth import publish_next
from .index_builder import IndexBuilder, check_facts
from .publishing import PublishLock, refuse_foreign_folder, remove_superseded

FLUSH_BYTES = 256 << 20
FLUSH_SECONDS = 30.0
WAITING_BYTES = 4 << 20  # of the journal, which is in memory until it is flushed
_NO_FACTS = SampleFacts()
_TEXT = "conditioning"  # the field whose entries are trimmed


class CacheWriter:
    """Writes a cache to `path`. Use it in `with`: a clean exit publishes.

    After an error nothing is published, but stored entries stay for the next writer.

    On an existing cache it starts a new list of samples (`append=True` continues the old one). Entries that are stored
    already are found by key or by content and not stored again. Safe to use from several threads.

    With `trim`, conditionings are stored without rows that can be restored bit for bit, where that saves a tenth.
    """

    def __init__(
        self,
        path: Place,
        provenance: Mapping[str, Any] | None = None,
        append: bool = False,
        flush_bytes: int = FLUSH_BYTES,
        flush_seconds: float = FLUSH_SECONDS,
        trim: bool = True,
    ) -> None:
        self._storage = storage = storage_at(path)
        self.path = storage.path
        plain_json(provenance or {}, "provenance")  # fail now, not after hours of encoding
        if storage.stat("") is not None and not storage.exists():
            raise CacheError(f"{self.path}: is a file; a cache is a folder")
        refuse_foreign_folder(storage)
        self._lock = PublishLock(storage)
        try:
            self._manifest = read_manifest(storage)
            self._provenance = provenance or (self._manifest.provenance if self._manifest else {})
            self._open = True
            self._flush_bytes, self._flush_seconds = flush_bytes, flush_seconds
            self.recovered_entries = 0  # left by an earlier writer that never published
            self.trimmed_bytes = 0  # not stored: padding and rows that entries share
            self._trimmer = Trimmer() if trim else None
            self._guard = threading.RLock()
            self._making: dict[bytes, threading.Event] = {}
            self._begin(append, self._checked_base(append) if self._manifest else None)
            self._recover()
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, keep_samples: bool, base: CheckedGeneration | None) -> None:
        """Start from the published generation."""
        manifest, index = (base.manifest, base.index) if base else (None, None)
        self._base = base
        self._extra = manifest.extra if manifest else {}
        self._builder = IndexBuilder(index, manifest, keep_samples)
        self._store = BlobStore(self._storage, manifest, index)
        self._named = dict(manifest.named) if manifest and keep_samples else {}

    def _checked_base(self, keep_samples: bool) -> CheckedGeneration:
        """The published generation as far as it is usable: damage must not be carried into the next one."""
        manifest = self._manifest
        assert manifest is not None, "there is a base"
        lost = lost_shards(self._storage, manifest.shards)
        if not lost:
            return open_quickly(self._storage, manifest, None if keep_samples else True)
        if keep_samples:
            raise CacheError(
                f"{self.path / SHARDS / manifest.shards[lost[0]].file}: is missing or truncated; restore it, "
                f'or run "streamcache verify --repair {self.path.name}" before samples are added'
            )
        return without_lost_shards(open_checked(self._storage, manifest))

    def _recover(self) -> None:
        for entry, refs in self._store.recover():
            if self._builder.find(entry.key) is None:
                self._builder.add_entry(entry.key, entry.field, entry.layout, entry.leaves, refs)
                self.recovered_entries += 1

    def add(
        self,
        latent: Any = None,
        conditioning: Any = None,
        caption: str | Sequence[str] = (),
        source: str = "",
        original_size: tuple[int, int] = (0, 0),
        crop: tuple[int, int, int, int] = (0, 0, 0, 0),
        repeats: int = 1,
        weight: float = 1.0,
        set: str = "",
        **fields: Any,
    ) -> int:
        """Store one sample and return its number. Any other keyword is a further field."""
        facts = check_facts(SampleFacts(caption, source, original_size, crop, repeats, weight, set))
        structures = {"latent": latent, "conditioning": conditioning, **fields}
        # All fields are split before any is stored, so an invalid one leaves nothing behind.
        for name in fields:
            _check_field(name)
        splits = {name: self._split(value, name) for name, value in structures.items() if value is not None}
        _check_single(latent)
        with self._guard:
            self._check_open()
            keys = {name: [self._put(None, parts, name)] for name, parts in splits.items()}
            return self._builder.add_sample(keys, facts)

    @property
    def without_bucket(self) -> int:
        """Samples added so far whose latent has no tensor under "samples": they belong to no bucket."""
        return self._builder.without_bucket

    def has(self, key: Key) -> bool:
        with self._guard:
            return self._builder.find(digest_key(key)) is not None

    def put(self, key: Key, structure: Any, field: str) -> None:
        """Store an entry under its key, unless the key is stored already."""
        digest = digest_key(key)
        if not self.has(digest):
            _check_field(field)
            parts = self._split(structure, field)
            if field == "latent":
                _check_single(structure)
            with self._guard:
                self._check_open()
                self._put(digest, parts, field)

    def put_split(self, key: Key, parts: Split, field: str, trim: bool = False) -> None:
        """Store an entry that is split already: as it is, like a copy, or with `trim` as `put` would."""
        digest, parts = digest_key(key), trim_split(parts, self._trimmer) if trim and field == _TEXT else parts
        with self._guard:
            self._check_open()
            self._put(digest, parts, field)

    def once(self, key: Key, make: Callable[[], Any], field: str) -> None:
        """Store the result of `make`, unless the key is stored. Of several threads, one makes it, the others wait."""
        digest = digest_key(key)
        while True:
            with self._guard:
                # Both lookups under one guard: in between, another thread could finish making it.
                if self._builder.find(digest) is not None:
                    return
                busy = self._making.get(digest)
                if busy is None:
                    self._making[digest] = threading.Event()
            if busy is not None:
                busy.wait()
                continue
            try:
                self.put(digest, make(), field)
            finally:
                with self._guard:
                    self._making.pop(digest).set()

    def sample(self, fields: Mapping[str, Sequence[Key]], facts: SampleFacts = _NO_FACTS) -> int:
        """Add a sample made of stored entries: the keys of each field, several if it has variants."""
        facts = check_facts(facts)
        with self._guard:
            self._check_open()
            for name in fields:
                _check_field(name)
            entries = {name: [self._entry(key, name) for key in keys] for name, keys in fields.items()}
            return self._builder.add_sample(entries, facts)

    def keep(self, first: int, count: int) -> None:
        """List samples of the generation that this writer started from again: the next `count` samples are these.

        Before the first sample is added, `adopt_sets` must be called.
        """
        with self._guard:
            self._check_open()
            self._builder.keep(first, count)

    def adopt_sets(self) -> bool:
        """Number sets as the last generation does, so that its samples can be kept. False if it cannot be used."""
        with self._guard:
            if self._base is None or not self._base.stored or self._builder.sample_count:
                return False
            self._builder.adopt_sets(self._base.manifest)
            return True

    def name(self, name: str, key: Key) -> None:
        """Give a stored entry a name in the cache, such as the empty caption."""
        with self._guard:
            self._check_open()
            self._entry(key, name)
            self._named[str(name)] = digest_key(key).hex()

    def describe_set(self, name: str, facts: Mapping[str, Any]) -> None:
        """Record the settings of a set of samples (weight, whether it is a prior set) in the manifest."""
        with self._guard:
            self._check_open()
            self._builder.describe_set(str(name), plain_json(facts, f"set {name!r}"))

    def flush(self) -> None:
        """Make everything stored so far durable, without changing what readers see."""
        with self._guard:
            self._check_open()
            self._store.flush()

    def publish(self, provenance: Mapping[str, Any] | None = None) -> Manifest:
        """Publish a new generation, which readers open from now on. Writing may continue.

        `provenance` replaces the one given when the writer was created.
        """
        with self._guard:
            self._check_open()
            if provenance is not None:
                self._provenance = provenance
            self._manifest = self._publish()
            self._store.drop()
            # Its own file was just written; those before it stay as they were found.
            index = open_index(self._storage, self._manifest, check=None if self._manifest.segments else True)
            thorough = not self._manifest.segments
            self._begin(True, CheckedGeneration(self._storage, self._manifest, index, thorough))
            # Only now: until here this writer had the last generation open.
            remove_superseded(self._storage, self._manifest)
            return self._manifest

    def _publish(self) -> Manifest:
        shards, shifts, next_shard = self._store.seal()
        builder, old = self._builder, self._manifest
        builder.move_shards(shifts)
        draft = Manifest(
            id=old.id if old else secrets.token_hex(16),
            index_bytes=0,
            index_hash="",
            shards=tuple(shards),
            fields=tuple(builder.fields),
            sets=builder.sets,
            named=self._named,
            provenance=plain_json(self._provenance, "provenance"),
            next_shard=next_shard,
            extra=forget_stored(self._extra, lambda key: builder.find(key) is not None),
        )
        return publish_next(self._storage, self._base, builder, draft)

    def close(self) -> None:
        """Release the cache without publishing. The next writer finds the stored entries."""
        with self._guard:
            if not self._open:
                return
            try:
                self._store.flush()
            finally:
                self._open = False
                self._store.close()
                self._lock.release()

    def __enter__(self) -> "CacheWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.publish()
        finally:
            self.close()

    def _check_open(self) -> None:
        if not self._open:
            raise CacheError(f"{self.path}: this writer is closed; open a new one")

    def _split(self, structure: Any, field: str) -> Split:
        return split(structure, field, self._trimmer if field == _TEXT else None)

    def _put(self, key: bytes | None, parts: Split, field: str) -> int:
        if key is None and parts.whole is not None:
            key = content_key(field, parts.whole)
        found = self._builder.find(key) if key is not None else None
        if found is not None:
            return found
        kind = ASIDE if field in ASIDE_FIELDS else DATA
        stored = [self._store.put(tensor, kind) for tensor in parts.tensors]
        if key is None:
            key = content_key(field, parts, stored)
            found = self._builder.find(key)
            if found is not None:
                return found
        self._store.record(key, field, parts, stored)
        self.trimmed_bytes += parts.saved
        refs = [(s.location, s.hash) for s in stored]
        entry = self._builder.add_entry(key, field, parts.layout, parts.leaves, refs)
        self._flush_if_due()
        return entry

    def _flush_if_due(self) -> None:
        waited = time.monotonic() - self._store.flushed_at
        full = self._store.unflushed_bytes >= self._flush_bytes or self._store.waiting_bytes >= WAITING_BYTES
        if full or waited >= self._flush_seconds:
            self._store.flush()

    def _entry(self, key: Key, field: str) -> int:
        entry = self._builder.find(digest_key(key))
        if entry is None:
            raise CacheError(f"{field}: no entry with key {key!r} is stored; put() it first")
        return entry


def _check_field(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise CacheError(f"field {name!r}: expected a name")


def _check_single(latent: Any) -> None:
    samples = latent.get("samples") if isinstance(latent, dict) else None
    if isinstance(samples, torch.Tensor) and (samples.dim() < 1 or samples.shape[0] != 1):
        shape = tuple(samples.shape)
        raise CacheError(
            f"latent['samples']: shape {shape}, expected a single sample [1, …]; split the batch into samples"
        )
