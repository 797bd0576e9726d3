"""The two sides of a journey: what is published on each, which has changed, and what both had in common last.

That is remembered on the near side, in `.travel/<digest of the other place>.json`. It cannot be part of the manifest:
publishing the same content twice would give two generations. It is no history either: a cache that came here by another
way has none, and then it is unknown which side is newer, which is said rather than guessed.
"""

import contextlib
import hashlib
import json
import re
from dataclasses import dataclass

from ...errors import CacheError
from ...quantity import plural
from ..format import MANIFEST, LocalStorage, Manifest, Place, Stamp, Storage, read_manifest, retrying, storage_at
from ..upkeep import TRAVEL

SAME, AHEAD, BEHIND, APART = "same", "ahead", "behind", "apart"
_ATTEMPTS = 10
_GENERATION = re.compile(r"[0-9a-f]{32}")
_MAX_RECORD = 1 << 12


@dataclass(frozen=True)
class Side:
    """One place, and what is published there."""

    storage: Storage
    manifest: Manifest | None
    stamp: Stamp | None

    @property
    def generation(self) -> str | None:
        return None if self.manifest is None else self.manifest.generation

    def __str__(self) -> str:
        if self.manifest is None:
            return f"{self.storage.path}: nothing"
        samples = plural(self.manifest.counts.get("samples", 0), "sample")
        return f"{self.storage.path}: generation {self.manifest.generation[:12]} ({samples})"


def look_at(place: Place) -> Side:
    storage = storage_at(place)
    for _ in range(_ATTEMPTS):
        before = _stamp(storage)
        manifest = retrying(lambda: read_manifest(storage)) if before is not None else None
        if before == _stamp(storage):
            return Side(storage, manifest, before)
    raise CacheError(f"{storage.path}: was published {_ATTEMPTS} times while it was being read; try again")


def compare(near: Side, far: Side) -> str:
    """Whether the near side is the same as the far one, ahead of it, behind it, or whether both have changed."""
    if near.manifest is None and far.manifest is None:
        raise CacheError(f"neither {near.storage.path} nor {far.storage.path} is a published cache; check both names")
    if near.manifest is None or far.manifest is None:
        return AHEAD if far.manifest is None else BEHIND
    if near.manifest.id != far.manifest.id:
        raise CacheError(
            f"{near.storage.path} and {far.storage.path} are different datasets (ids {near.manifest.id[:8]} and "
            f"{far.manifest.id[:8]}); choose another place for one of them"
        )
    if near.generation == far.generation:
        return SAME
    common = last_common(near.storage, far.storage)
    return AHEAD if far.generation == common else BEHIND if near.generation == common else APART


def last_common(near: Storage, far: Storage) -> str | None:
    """The generation that both sides had when one was last brought to the other; None if that is not known."""
    with contextlib.suppress(CacheError, OSError, ValueError, TypeError, KeyError, RecursionError):
        near.refuse_link(TRAVEL)
        file = near.open(_record(far))
        found = json.loads(bytes(file.read(0, min(file.size, _MAX_RECORD))))["generation"]
        return found if _GENERATION.fullmatch(found) else None
    return None


def remember_common(near: Storage, far: Storage, generation: str) -> None:
    """Without it the next sync asks which side to keep: a folder that cannot be written to is no reason to fail."""
    if last_common(near, far) == generation:
        return
    with contextlib.suppress(CacheError, OSError):
        near.refuse_link(TRAVEL)
        near.make_folder(TRAVEL)
        near.replace(_record(far), json.dumps({"generation": generation}).encode())


def _record(far: Storage) -> str:
    # A digest only: a place may name hosts and folders that do not belong into a folder which is copied and shared.
    place = str(far.path.resolve()) if isinstance(far, LocalStorage) else str(far.path).rstrip("/")
    return f"{TRAVEL}/{hashlib.blake2b(place.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}.json"


def _stamp(storage: Storage) -> Stamp | None:
    status = storage.stat(MANIFEST)
    return None if status is None else status.stamp
