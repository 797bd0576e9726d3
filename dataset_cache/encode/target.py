"""The target of a run: the cache that a plan is encoded to, what it contains already, and the memory of its sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import CacheError
from ..format import DAMAGED, Manifest, Place, Storage, abandoned, dropped_keys, read_manifest, recover, storage_at
from ..read import Cache, open_cache
from ..sources import SourceMemory, normal_form, open_memory
from ..upkeep import repair
from ..write import lost_shards, open_checked, without_lost_shards
from .identity import digest_of
from .recipe import Recipe

RUN = "encode"  # the name of these runs in provenance and memory


class Target:
    """A path with a cache, an unfinished build, or nothing yet. None: no path.

    `provenance` is recorded in the next generation, in addition to how it was encoded.
    """

    def __init__(self, place: Place | None, provenance: Mapping[str, Any] | None = None) -> None:
        self.storage = None if place is None else storage_at(place)
        self.provenance = dict(provenance or {})

    @cached_property
    def cache(self) -> Cache | None:
        if self.storage is None or read_manifest(self.storage) is None:
            return None
        return open_cache(self.storage)

    @cached_property
    def before(self) -> Manifest | None:
        """The manifest when the cache was opened."""
        return self.cache.manifest if self.cache is not None else None

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of the samples that the cache had before this run, by their normal form."""
        found = map(self.cache.source, range(len(self.cache))) if self.cache is not None else ()
        return {normal_form(name): name for name in found}

    def let_go(self) -> None:
        """Close the cache: while it is open, its generation would not be removed after publishing the next one."""
        if self.before is not None:
            del self.cache

    def repaired(self) -> Target:
        """Publish the cache without its damaged entries, however many; this run encodes them again."""
        if self.storage is None or self.before is None:
            return self
        names = self.names
        self.let_go()
        repair(self.storage, accept_loss=True)
        target = Target(self.storage, self.provenance)
        target.names = names
        return target

    @cached_property
    def pending(self) -> frozenset[bytes]:
        """Keys of the entries in unfinished builds."""
        storage = self.storage
        left = [recover(storage, folder) for folder in abandoned(storage)] if storage is not None else []
        return frozenset(entry.key for found in left for entry in found.entries)

    @cached_property
    def lost(self) -> frozenset[bytes]:
        """Keys of the published entries whose shards are missing or truncated. They are encoded again."""
        if self.storage is None or self.before is None or not lost_shards(self.storage, self.before.shards):
            return frozenset()
        left = without_lost_shards(open_checked(self.storage, self.before))
        return frozenset(dropped_keys(left.manifest)) - frozenset(dropped_keys(self.before))

    @cached_property
    def dropped(self) -> dict[bytes, str]:
        """Entries that repair removed or that are lost, and why."""
        known = dropped_keys(self.before) if self.before is not None else {}
        return {**dict.fromkeys(self.lost, DAMAGED), **known}

    @property
    def is_empty(self) -> bool:
        """Nothing can be reused, so files need not be hashed in advance."""
        return self.before is None and not self.pending

    def has(self, key: bytes) -> bool:
        return key in self.pending or (self.cache is not None and key not in self.lost and self.cache.has(key))

    def open_memory(self) -> SourceMemory:
        """The memory is named after the cache's id, or after the path until the cache is published."""
        if self.storage is None:
            return open_memory(None)
        return open_memory(self.before.id if self.before is not None else _provisional(self.storage))

    def settle_memory(self, memory: SourceMemory, dataset: str) -> None:
        """After the first publication, rename the memory after the cache's id."""
        if self.before is None:
            memory.move(dataset)

    def check_trust(self, recipe: Recipe) -> None:
        """Refuse to trust entries made by other encoders."""
        if self.storage is None or self.before is None:
            return
        run = self.before.provenance.get(RUN)
        made = run.get("encoders") if isinstance(run, dict) else None
        made = made if isinstance(made, dict) else {}
        for name, identity in recipe.describe().items():
            if identity is not None and made.get(name) not in (None, identity):
                raise CacheError(
                    f"{self.storage.path}: trust is on, but its {name} encoder was {made[name]} and this one is "
                    f"{identity}; encode without trust, or with the encoder it was made with"
                )


def _provisional(storage: Storage) -> str:
    return "path-" + digest_of(str(storage.path.resolve() if isinstance(storage.path, Path) else storage.path))
