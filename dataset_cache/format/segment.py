"""A segment: what one writer adds to a dataset before it is published. Growing shards, and a journal of what they hold.

At every `flush` the shards, then the journal, are made durable. After a kill, `recover` finds what was.
"""

import base64
import contextlib
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import CacheError
from .journal import JOURNAL, Journal, read_journal
from .locks import is_locked
from .manifest import SHARDS
from .shard import HEADER_BYTES, SHARD_NAME, Blob, ShardWriter, seal, tight_start
from .skeleton import Layout, TensorSpec
from .storage import OpenFile, create_file, is_link, is_regular, move_file, sync_folder

BUILD = ".build"
DATA, ASIDE = "s", "t"  # a sample's tensors; what is looked at but not trained on (thumbnails)
SEGMENT_LOCK = "lock"
_MAX_HEADER_BYTES = 64 << 20
_TIGHTEN_BELOW = 16  # a header larger than 1/16 of its data is cut to size when the shard is sealed


@dataclass(frozen=True)
class EntryRecord:
    """An entry as the journal keeps it. A reference is (name of the shard, offset, hash)."""

    key: bytes
    field: str
    layout: str
    leaves: bytes
    refs: Sequence[tuple[str, int, bytes]]


@dataclass
class BuildShard:
    """A shard that is not published yet. `file` is its name among the shards once it has moved there."""

    name: str  # segment and number, by which journals refer to it whether it has moved or not
    path: Path
    kind: str
    data_start: int = HEADER_BYTES
    blobs: list[Blob] = field(default_factory=list)
    writer: ShardWriter | None = None
    journal: Journal | None = None  # that tells of it
    file: str | None = None
    shift: int = 0  # how much nearer to the front its blobs moved when its header was cut to size

    @property
    def end(self) -> int:
        return max((blob.offset + blob.nbytes for blob in self.blobs), default=self.data_start)

    def read(self, offset: int, size: int) -> bytes | bytearray:
        if self.writer is not None:
            return self.writer.read(offset, size)
        return OpenFile(self.path).read(offset, size)


class Segment:
    """A folder of its own below `.build`. Its lock tells a living writer from one that was killed."""

    def __init__(self, dataset: Path) -> None:
        self.folder = dataset / BUILD / secrets.token_hex(8)
        self.shards: list[BuildShard] = []
        self._layouts: dict[str, int] = {}
        self.entry_count = 0
        try:
            self.folder.mkdir(parents=True)
            self._lock = FileLock(str(self.folder / SEGMENT_LOCK), thread_local=False)
            self._lock.acquire(timeout=0)
            self._journal = Journal(self.folder / JOURNAL)
            for folder in (self.folder.parent, dataset):  # which may be as new as the segment
                sync_folder(folder)
        except OSError as error:
            raise CacheError(f"{self.folder}: cannot be made: {error.strerror or error}") from error

    def append(self, kind: str, digest: bytes, spec: TensorSpec, data: memoryview, apart: bool) -> Blob:
        """Store a blob; a new shard appears in `shards` when the last one is full.

        `apart` starts a new shard: blobs are named by hash, so two with one hash cannot share a file.
        """
        try:
            shard = self._shard_for(kind, len(data), apart)
            end, count = shard.writer.end, len(shard.blobs)
            try:
                return shard.writer.append(digest, spec.dtype, spec.shape, data)
            except OSError:
                shard.writer.rewind(end, count)
                raise
        except OSError as error:
            raise CacheError(
                f"{self.folder}: cannot be written: {error.strerror}; what was stored before is safe"
            ) from error

    def record(self, entry: EntryRecord) -> None:
        """Tell the journal of an entry, and with it of its blobs: the layout knows their types and shapes."""
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

    def flush(self) -> None:
        """Make everything so far durable: first the bytes, then the journal that speaks of them."""
        for shard in self.shards:
            if shard.writer is not None:
                shard.writer.sync()
        self._journal.flush()
        sync_folder(self.folder)

    def close(self) -> None:
        for shard in self.shards:
            if shard.writer is not None:
                shard.writer.close()
                shard.writer = None
        self._journal.close()
        self._lock.release()

    def remove(self) -> None:
        self.close()
        remove_segment(self.folder)

    def _shard_for(self, kind: str, nbytes: int, apart: bool) -> BuildShard:
        last = next((shard for shard in reversed(self.shards) if shard.kind == kind), None)
        if last is not None:
            if last.writer is not None and last.writer.has_room(nbytes) and not apart:
                return last
            self._finish(last)
        shard = _new_shard(self.folder, len(self.shards), kind, self._journal)
        # An earlier attempt may have left a file of this name that the journal never heard of.
        shard.path.unlink(missing_ok=True)
        shard.writer = ShardWriter(shard.path)
        shard.blobs = shard.writer.blobs
        self.shards.append(shard)
        self._journal.append(kind="shard", type=kind, start=shard.data_start)
        return shard

    def _finish(self, shard: BuildShard) -> None:
        """A full shard keeps no handle open; its header comes when it is published."""
        if shard.writer is not None:
            shard.writer.sync()
            shard.writer.close()
            shard.writer = None


@dataclass(frozen=True)
class Recovered:
    """What a killed writer had made durable. References are as they were written: `BuildShard.shift` is not in them."""

    folder: Path
    journal: Journal
    shards: list[BuildShard]
    entries: list[EntryRecord]

    @property
    def nbytes(self) -> int:
        return sum(blob.nbytes for shard in self.shards for blob in shard.blobs)

    def remove(self) -> None:
        self.journal.close()
        remove_segment(self.folder)


def abandoned(dataset: Path) -> Iterator[Path]:
    """The segments below this dataset whose writer is gone."""
    try:
        folders = sorted(path for path in (dataset / BUILD).iterdir() if path.is_dir() and not is_link(path))
    except OSError:
        return
    for folder in folders if not is_link(dataset / BUILD) else ():
        if not (folder / SEGMENT_LOCK).exists():  # no writer's: what a compaction left
            yield folder
            continue
        if is_link(folder / SEGMENT_LOCK):
            continue
        try:
            held = is_locked(folder / SEGMENT_LOCK)
        except OSError:
            held = True  # nobody can tell
        if not held:
            yield folder


def recover(folder: Path) -> Recovered:
    """Read a segment's journal. Shards whose bytes are not all there are left out."""
    journal = Journal(folder / JOURNAL)
    shards: dict[str, BuildShard] = {}
    layouts: list[tuple[str, tuple[TensorSpec, ...]]] = []
    blobs: dict[str, dict[tuple[int, bytes], Blob]] = {}
    entries: list[EntryRecord] = []
    for fact in read_journal(folder / JOURNAL):
        try:
            if fact["kind"] == "shard":
                shard = _new_shard(folder, len(shards), fact["type"], journal, fact["start"])
                shards[shard.name], blobs[shard.name] = shard, {}
            elif fact["kind"] == "layout":
                layouts.append((fact["text"], Layout(fact["text"]).specs))
            elif fact["kind"] == "entry":
                entries.append(_read_entry(fact, layouts, blobs))
            elif fact["kind"] == "sealed":
                _apply_seal(shards[f"{folder.name}/{fact['shard']}"], folder.parent.parent, fact)
        except (KeyError, IndexError, TypeError, ValueError):
            break  # written by something else: what comes after it is not understood either
    for name, shard in shards.items():
        found = sorted(blobs[name].values(), key=lambda blob: (blob.offset, blob.nbytes))
        shard.blobs = [replace(blob, offset=blob.offset - shard.shift) for blob in found]
    return Recovered(folder, journal, [shard for shard in shards.values() if _is_whole(shard)], entries)


def publish_shard(shard: BuildShard, dataset: Path, number: int) -> None:
    """Write the header, cut it to size where it would waste space, and move the file among the dataset's shards.

    The segment's journal learns of it before the move, so that a kill between the two is understood by `recover`.
    """
    if shard.writer is not None:
        shard.writer.close()
        shard.writer = None
    source, blobs, start = shard.path, shard.blobs, shard.data_start
    if start * _TIGHTEN_BELOW > shard.end - start:
        source, blobs, start = _tighten(shard)
    end = max((blob.offset + blob.nbytes for blob in blobs), default=start)
    digest = seal(source, blobs, start, end)
    shift, file = shard.data_start - start, f"{shard.kind}-{number:05d}-{digest}.safetensors"
    if shard.journal is not None:
        shard.journal.append(kind="sealed", shard=int(shard.path.name), file=file, shift=shift)
        shard.journal.flush()
    target = dataset / SHARDS / file
    target.parent.mkdir(exist_ok=True)
    move_file(source, target)
    shard.path, shard.blobs, shard.data_start, shard.file, shard.shift = target, blobs, start, file, shift


def remove_segment(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another segment is there
        folder.parent.rmdir()


def _new_shard(folder: Path, number: int, kind: str, journal: Journal, start: int = HEADER_BYTES) -> BuildShard:
    if kind not in (DATA, ASIDE) or type(start) is not int or not 0 < start <= _MAX_HEADER_BYTES:
        raise ValueError(f"a shard of kind {kind!r} that starts at {start!r}")
    return BuildShard(f"{folder.name}/{number}", folder / f"{number}", kind, start, journal=journal)


def _tighten(shard: BuildShard) -> tuple[Path, list[Blob], int]:
    """A copy of a small shard with a header of just the size it needs. Blobs move by a multiple of their alignment."""
    start = tight_start(shard.blobs, shard.data_start, shard.end)
    shift = shard.data_start - start
    path = shard.path.with_suffix(".tight")
    with open(shard.path, "rb") as source, create_file(path) as target:
        source.seek(shard.data_start)
        target.seek(start)
        shutil.copyfileobj(source, target, 1 << 20)
    blobs = [Blob(blob.hash, blob.dtype, blob.shape, blob.offset - shift) for blob in shard.blobs]
    return path, blobs, start


def _read_entry(
    fact: dict[str, Any],
    layouts: list[tuple[str, tuple[TensorSpec, ...]]],
    blobs: dict[str, dict[tuple[int, bytes], Blob]],
) -> EntryRecord:
    """An entry, and with it the blobs of this segment that it refers to: its layout has their types and shapes."""
    text, specs = layouts[fact["layout"]]
    refs = [(where, at, bytes.fromhex(digest)) for where, at, digest in fact["refs"]]
    key, field = bytes.fromhex(fact["key"]), fact["field"]
    if (
        len(key) != 16
        or not isinstance(field, str)
        or not all(type(at) is int and 0 <= at < 1 << 40 and len(d) == 16 for _, at, d in refs)
    ):
        raise ValueError("an entry without a key, a field or references")
    for (where, at, digest), spec in zip(refs, specs, strict=True):
        if where in blobs:
            # A tensor without bytes stands where the next one starts, so a place alone does not tell them apart.
            blobs[where][at, digest] = Blob(digest, spec.dtype, spec.shape, at)
    return EntryRecord(key, field, text, base64.b64decode(fact["leaves"]), refs)


def _apply_seal(shard: BuildShard, dataset: Path, fact: dict[str, Any]) -> None:
    file, shift = fact["file"], fact["shift"]
    if not SHARD_NAME.fullmatch(file) or type(shift) is not int or not 0 <= shift < shard.data_start:
        raise ValueError(f"a shard that was sealed as {file!r}")
    published = dataset / SHARDS / file
    if published.exists():
        shard.path, shard.file, shard.shift = published, file, shift
        shard.data_start -= shift


def _is_whole(shard: BuildShard) -> bool:
    try:
        return is_regular(shard.path) and shard.path.stat().st_size >= shard.end
    except OSError:
        return False
