"""Views: generations that pages look at, open for a moment. A view takes no lease: whoever only looks is no reader and
leaves no trace; if what it shows is removed meanwhile, it says so."""

from functools import cached_property
from pathlib import Path

from ...dataset_cache import (
    Cache,
    CacheError,
    CheckedGeneration,
    Index,
    Manifest,
    Overview,
    manifest_stamp,
    open_checked,
    open_index,
    overview_of,
    read_manifest,
)
from ..library import Kept, bucket_names
from .refusals import Refused

_MOST = 4
_ATTEMPTS = 5


class View:
    """One generation, opened from its metadata."""

    def __init__(self, folder: Path, manifest: Manifest, index: Index) -> None:
        self.folder, self.manifest, self.index = folder, manifest, index
        self.generation = manifest.generation
        self.cache = Cache(folder, manifest, index, lease=None)
        self.set_names = list(manifest.sets)
        self.matches: dict = {}  # (search, bucket) → the samples that match

    @cached_property
    def bucket_names(self) -> list[str]:
        return bucket_names(self.index.arrays.samples, self.manifest.buckets)

    @cached_property
    def current(self) -> CheckedGeneration:
        """The generation checked through and through, which takes a moment for a large one."""
        return open_checked(self.folder, self.manifest)

    @cached_property
    def overview(self) -> Overview:
        return overview_of(self.current)

    @cached_property
    def lowered(self) -> list[str]:
        """All captions and sources, in lower case."""
        return [self.index.string(number).lower() for number in range(len(self.index.arrays.string_ends))]


def view(folder: Path, generation: str = "") -> View:
    """A generation of the cache: one that was looked at a moment ago, or the published one."""
    return KEPT.get(folder, generation)


def close(folder: Path | None = None) -> None:
    """Let go of a cache's files, which on Windows could not be moved or removed otherwise; or of all."""
    KEPT.close(folder)


def _open_published(folder: Path, generation: str) -> View:
    for _ in range(_ATTEMPTS):
        stamp = manifest_stamp(folder)
        manifest = read_manifest(folder)
        if manifest is None:
            raise Refused(f"{folder.name}: was removed, or was never finished", 404)
        if generation and manifest.generation != generation:
            raise Refused(f"{folder.name} was saved again since this page was loaded; load it again", 409)
        try:
            return View(folder, manifest, open_index(folder, manifest))
        except CacheError:
            if manifest_stamp(folder) == stamp:
                raise
    raise Refused(f"{folder.name} is being saved at this moment; try again", 409)


KEPT = Kept(_open_published, _MOST)
