"""Target: the cache that a plan is encoded to: what it holds already, and the state of its sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import CacheError
from ..format import Manifest, abandoned, dropped_keys, read_manifest, recover, storage_at
from ..read import Cache, open_cache
from ..sources import State, open_state
from .identity import digest_of
from .recipe import Recipe

RUN = "encode"  # the name of these runs in provenance and state


class Target:
    """A path that may hold a dataset, the rest of an unfinished build, or nothing yet. None: nowhere.

    `provenance` is what its next generation says of itself, beside how it was encoded.
    """

    def __init__(self, path: str | Path | None, provenance: Mapping[str, Any] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.provenance = dict(provenance or {})

    @cached_property
    def cache(self) -> Cache | None:
        published = self.path is not None and read_manifest(self.path) is not None
        return open_cache(self.path) if published else None

    @cached_property
    def before(self) -> Manifest | None:
        """What was published when the cache was opened."""
        return self.cache.manifest if self.cache is not None else None

    def let_go(self) -> None:
        """Close the cache: held open, the generation would outlive the publication of the next one."""
        if self.before is not None:
            del self.cache

    @cached_property
    def pending(self) -> frozenset[bytes]:
        """Keys of entries that an unfinished build left ready."""
        if self.path is None:
            return frozenset()
        storage = storage_at(self.path)
        left = [recover(storage, folder) for folder in abandoned(storage)]
        return frozenset(entry.key for found in left for entry in found.entries)

    @cached_property
    def dropped(self) -> dict[bytes, str]:
        """Entries that repair took out, and why."""
        return dropped_keys(self.before) if self.before is not None else {}

    @property
    def is_empty(self) -> bool:
        """Nothing can be reused, so nothing needs to be hashed to find out."""
        return self.before is None and not self.pending

    def has(self, key: bytes) -> bool:
        return key in self.pending or (self.cache is not None and self.cache.has(key))

    def open_state(self) -> State:
        """The state goes by the dataset's id. Until a dataset is published it has none, and its path serves."""
        if self.path is None:
            return open_state(None)
        return open_state(self.before.id if self.before is not None else _provisional(self.path))

    def settle_state(self, state: State, dataset: str) -> None:
        """After the first publication: the state moves to the dataset's id."""
        if self.before is None:
            state.move(dataset)

    def check_trust(self, recipe: Recipe) -> None:
        """Trusted entries must at least have been made by these encoders."""
        if self.before is None:
            return
        run = self.before.provenance.get(RUN)
        made = run.get("encoders") if isinstance(run, dict) else None
        made = made if isinstance(made, dict) else {}
        for name, identity in recipe.describe().items():
            if identity is not None and made.get(name) not in (None, identity):
                raise CacheError(
                    f"{self.path}: trust was asked for, but its {name} encoder was {made[name]} and this one is "
                    f"{identity}; encode without trust, or with the encoder it was made with"
                )


def _provisional(path: Path) -> str:
    return "path-" + digest_of(os.path.realpath(path))
