"""A segment: what one writer has added and not published yet. Growing shards, and a journal of their entries.

`flush` makes the shards durable, then the journal. After a crash, `recover` reads what was durable.
"""

import base64
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import CacheError, CacheUnreadable
from ..address import Address
from .journal import JOURNAL, Journal, read_journal
from .locks import Lock
from .manifest import SHARDS
from .shard import HEADER_BYTES, SHARD_NAME, Blob, PackedBlobs, ShardWriter, seal, tight_start
from .skeleton import Layout
from .storage import Place, Storage, storage_at
from .tensors import TensorSpec

BUILD = ".build"
DATA, ASIDE = "s", "t"  # training data; fields that are only displayed (thumbnails)
SEGMENT_LOCK = "lock"
_MAX_HEADER_BYTES = 64 << 20
_COPY_BYTES = 1 << 20
_WAIT_SECONDS = 1.0  # a process that looks whether the writer is gone holds its lock for a moment
_TIGHTEN_BELOW = 16  # a header larger than 1/16 of its data is shrunk when the shard is sealed


@dataclass(frozen=True)
class EntryRecord:
    """An entry in the journal. A reference is (shard name, offset, hash)."""

    key: bytes
    field: str
    layout: str
    leaves: bytes
    refs: Sequence[tuple[str, int, bytes]]


@dataclass
class BuildShard:
    """A shard that is not published yet. `file` is its name once it has moved to the published shards."""

    storage: Storage
    name: str  # segment and number: how journals refer to it, before and after it moves
    place: str  # the name of its file
    kind: str
    data_start: int = HEADER_BYTES
    blobs: Sequence[Blob] = field(default_factory=list)
    writer: ShardWriter | None = None
    journal: Journal | None = None  # the one that lists it
    file: str | None = None
    shift: int = 0  # how far its blobs moved to the front when its header was shrunk

    @property
    def end(self) -> int:
        return max((blob.offset + blob.nbytes for blob in self.blobs), default=self.data_start)

    def read(self, offset: int, size: int) -> bytes | bytearray:
        if self.writer is not None:
            try:
                return self.writer.read(offset, size)
            except OSError as error:
                raise CacheUnreadable(f"{self.storage.path / self.place}: cannot be read: {error.strerror}") from error
        return self.storage.open(self.place).read(offset, size)


class Segment:
    """One writer's folder below `.build`. Its lock shows whether the writer is still running."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.folder = f"{BUILD}/{secrets.token_hex(8)}"
        self.shards: list[BuildShard] = []
        self._layouts: dict[str, int] = {}
        self.entry_count = 0
        try:
            storage.make_folder(self.folder, new=True)
            self._lock: Lock = storage.lock(f"{self.folder}/{SEGMENT_LOCK}", _WAIT_SECONDS)
            self._journal = Journal(storage, f"{self.folder}/{JOURNAL}")
            for folder in (BUILD, ""):  # may be as new as the segment
                storage.sync(folder)
        except OSError as error:
            raise CacheError(f"{self._place}: cannot be created: {error.strerror or error}") from error

    @property
    def _place(self) -> Path | Address:
        return self._storage.path / self.folder

    def append(self, kind: str, digest: bytes, spec: TensorSpec, data: memoryview, apart: bool) -> Blob:
        """Store a blob, in a new shard if the last one is full.

        `apart` forces a new shard: blobs are named by hash, so two with the same hash cannot share a file.
        """
        try:
            shard = self._shard_for(kind, len(data), apart)
            writer, count = shard.writer, len(shard.blobs)
            assert writer is not None
            end = writer.end
            try:
                return writer.append(digest, spec.dtype, spec.shape, data)
            except OSError:
                writer.rewind(end, count)
                raise
        except OSError as error:
            raise CacheError(
                f"{self._place}: cannot be written: {error.strerror}; everything stored before is safe"
            ) from error

    def record(self, entry: EntryRecord) -> None:
        """Add an entry to the journal, and with it its blobs: the layout has their types and shapes."""
        layout = self._layouts.get(entry.layout)
        if layout is None:
            layout = self._layouts[entry.layout] = len(self._layouts)
            self._journal.append(kind="layout", text=entry.layout)
        refs = [[where, offset, digest.hex()] for where, offset, digest in entry.refs]
        leaves = base64.b64encode(entry.leaves).decode()
        self._journal.append(
            kind="entry", key=entry.key.hex(), field=entry.field, layout=layout, leaves=leaves, refs=refs
        )
        self.entry_count += 1

    @property
    def waiting_bytes(self) -> int:
        """The size of the records that are in memory until the next flush."""
        return self._journal.waiting_bytes

    def flush(self) -> None:
        """Make everything so far durable: first the blobs, then the journal that refers to them."""
        for shard in self.shards:
            if shard.writer is not None:
                shard.writer.sync()
        self._journal.flush()
        self._storage.sync(self.folder)

    def close(self) -> None:
        for shard in self.shards:
            if shard.writer is not None:
                shard.writer.close()
                shard.writer = None
        self._journal.close()
        self._lock.release()

    def remove(self) -> None:
        self.close()
        remove_segment(self._storage, self.folder)

    def _shard_for(self, kind: str, nbytes: int, apart: bool) -> BuildShard:
        last = next((shard for shard in reversed(self.shards) if shard.kind == kind), None)
        if last is not None:
            if last.writer is not None and last.writer.has_room(nbytes) and not apart:
                return last
            self._finish(last)
        shard = _new_shard(self._storage, self.folder, len(self.shards), kind, self._journal)
        # An earlier attempt may have left a file of this name that is not in the journal.
        self._storage.remove(shard.place)
        shard.writer = ShardWriter(self._storage, shard.place)
        shard.blobs = shard.writer.blobs
        self.shards.append(shard)
        self._journal.append(kind="shard", type=kind, start=shard.data_start)
        return shard

    def _finish(self, shard: BuildShard) -> None:
        """Close a full shard. Its header is written when it is published."""
        if shard.writer is not None:
            shard.writer.sync()
            shard.writer.close()
            shard.writer, shard.blobs = None, PackedBlobs(shard.blobs)


@dataclass(frozen=True)
class Recovered:
    """What a killed writer had made durable. References do not include `BuildShard.shift`."""

    storage: Storage
    folder: str
    journal: Journal
    shards: list[BuildShard]
    entries: list[EntryRecord]

    @property
    def nbytes(self) -> int:
        return sum(blob.nbytes for shard in self.shards for blob in shard.blobs)

    def remove(self) -> None:
        self.journal.close()
        remove_segment(self.storage, self.folder)


def has_build(place: Place) -> bool:
    """Whether a folder contains what writers have not published yet. False also if reading is not permitted.

    A link counts, so that writing to the cache reports why it is refused.
    """
    try:
        return _kind(storage_at(place), BUILD) in ("folder", "link")
    except CacheError:
        return False


def segments(storage: Storage) -> list[str]:
    """The folders of all segments, of running writers too."""
    folders = [f"{BUILD}/{name}" for name in storage.list(BUILD)]
    return [folder for folder in folders if _kind(storage, folder) == "folder"]


def abandoned(storage: Storage) -> Iterator[str]:
    """The folders of the segments whose writer is gone; none if they cannot be listed."""
    try:
        folders = segments(storage)
    except CacheError:
        return
    for folder in folders:
        lock = f"{folder}/{SEGMENT_LOCK}"
        kind = _kind(storage, lock)
        # A folder without a lock is not a writer's but was left by a compaction.
        if kind is None or (kind != "link" and not _may_be_locked(storage, lock)):
            yield folder


def _kind(storage: Storage, name: str) -> str | None:
    status = storage.stat(name)
    return None if status is None else status.kind


def _may_be_locked(storage: Storage, lock: str) -> bool:
    try:
        return storage.is_locked(lock)
    except OSError:
        return True


def recover(storage: Storage, folder: str) -> Recovered:
    """Read a segment's journal. Incomplete shards are skipped."""
    journal = Journal(storage, f"{folder}/{JOURNAL}")
    shards: dict[str, BuildShard] = {}
    layouts: list[tuple[str, tuple[TensorSpec, ...]]] = []
    blobs: dict[str, dict[tuple[int, bytes], Blob]] = {}
    entries: list[EntryRecord] = []
    for fact in read_journal(storage, f"{folder}/{JOURNAL}"):
        try:
            if fact["kind"] == "shard":
                shard = _new_shard(storage, folder, len(shards), fact["type"], journal, fact["start"])
                shards[shard.name], blobs[shard.name] = shard, {}
            elif fact["kind"] == "layout":
                layouts.append((fact["text"], Layout(fact["text"]).specs))
            elif fact["kind"] == "entry":
                entries.append(_read_entry(fact, layouts, blobs))
            elif fact["kind"] == "sealed":
                _apply_seal(shards[f"{_last(folder)}/{fact['shard']}"], fact)
        except CacheUnreadable:
            raise
        except (KeyError, IndexError, TypeError, ValueError):
            break  # not written by this version: the rest cannot be understood either
    for name, shard in shards.items():
        found = sorted(blobs[name].values(), key=lambda blob: (blob.offset, blob.nbytes))
        shard.blobs = [replace(blob, offset=at) for blob in found if (at := blob.offset - shard.shift) >= 0]
    return Recovered(storage, folder, journal, [shard for shard in shards.values() if _is_complete(shard)], entries)


def publish_shard(shard: BuildShard, number: int) -> None:
    """Write the header, shrink it if it would waste space, and move the file to the published shards.

    The journal records the move first, so that `recover` understands a crash in between.
    """
    if shard.writer is not None:
        shard.writer.close()
        shard.writer = None
    storage, source, blobs, start = shard.storage, shard.place, shard.blobs, shard.data_start
    if start * _TIGHTEN_BELOW > shard.end - start:
        source, blobs, start = _tighten(shard)
    end = max((blob.offset + blob.nbytes for blob in blobs), default=start)
    digest = seal(storage, source, blobs, start, end)
    shift, file = shard.data_start - start, f"{shard.kind}-{number:05d}-{digest}.safetensors"
    if shard.journal is not None:
        shard.journal.append(kind="sealed", shard=int(_last(shard.place)), file=file, shift=shift)
        shard.journal.flush()
    target = f"{SHARDS}/{file}"
    storage.make_folder(SHARDS)
    storage.move(source, target)
    shard.place, shard.blobs, shard.data_start, shard.file, shard.shift = target, blobs, start, file, shift


def remove_segment(storage: Storage, folder: str) -> None:
    storage.remove_folder(folder, content=True)
    storage.remove_folder(BUILD)  # stays if it contains another segment


def _new_shard(
    storage: Storage, folder: str, number: int, kind: str, journal: Journal, start: int = HEADER_BYTES
) -> BuildShard:
    if kind not in (DATA, ASIDE) or type(start) is not int or not 0 < start <= _MAX_HEADER_BYTES:
        raise ValueError(f"invalid shard: kind {kind!r}, data at {start!r}")
    return BuildShard(storage, f"{_last(folder)}/{number}", f"{folder}/{number}", kind, start, journal=journal)


def _tighten(shard: BuildShard) -> tuple[str, Sequence[Blob], int]:
    """A copy of a small shard with a header of minimal size. Blobs move by a multiple of their alignment."""
    start = tight_start(shard.blobs, shard.data_start, shard.end)
    shift = shard.data_start - start
    place, source = f"{shard.place}.tight", shard.storage.open(shard.place)
    with shard.storage.create(place, durable=False) as target:
        target.write(bytes(start))
        for at in range(shard.data_start, source.size, _COPY_BYTES):
            target.write(source.read(at, min(_COPY_BYTES, source.size - at)))
    blobs = [Blob(blob.hash, blob.dtype, blob.shape, blob.offset - shift) for blob in shard.blobs]
    return place, blobs, start


def _read_entry(
    fact: dict[str, Any],
    layouts: list[tuple[str, tuple[TensorSpec, ...]]],
    blobs: dict[str, dict[tuple[int, bytes], Blob]],
) -> EntryRecord:
    """An entry, and the blobs of this segment that it refers to: its layout has their types and shapes."""
    text, specs = layouts[fact["layout"]]
    refs = [(where, at, bytes.fromhex(digest)) for where, at, digest in fact["refs"]]
    key, field = bytes.fromhex(fact["key"]), fact["field"]
    if (
        len(key) != 16
        or not isinstance(field, str)
        or not all(type(at) is int and 0 <= at < 1 << 40 and len(d) == 16 for _, at, d in refs)
    ):
        raise ValueError("invalid entry: key, field or references")
    for (where, at, digest), spec in zip(refs, specs, strict=True):
        if where in blobs:
            # An empty tensor has the offset of the next one, so the offset alone does not identify a blob.
            blobs[where][at, digest] = Blob(digest, spec.dtype, spec.shape, at)
    return EntryRecord(key, field, text, base64.b64decode(fact["leaves"]), refs)


def _apply_seal(shard: BuildShard, fact: dict[str, Any]) -> None:
    file, shift = fact["file"], fact["shift"]
    if not SHARD_NAME.fullmatch(file) or type(shift) is not int or not 0 <= shift < shard.data_start:
        raise ValueError(f"invalid seal: {file!r}")
    published = f"{SHARDS}/{file}"
    if shard.storage.stat(published) is not None:
        shard.place, shard.file, shard.shift, shard.data_start = published, file, shift, shard.data_start - shift


def _is_complete(shard: BuildShard) -> bool:
    status = shard.storage.stat(shard.place)
    return status is not None and status.kind == "file" and status.size >= shard.end


def _last(name: str) -> str:
    return name.rpartition("/")[2]
