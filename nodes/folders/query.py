"""Which images of a folder a page asks for, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...dataset_cache import Transform, curate
from ..outside import Refused
from .alike import groups_of
from .open_folders import FolderNow

_MAX_WORDS = 20
_SIMILARITY = "similarity"


@dataclass(frozen=True)
class Query:
    """A filter and an order. `transform` decides the buckets."""

    wanted: curate.ImageFilter = field(default_factory=curate.ImageFilter)
    order: str = curate.IMAGE_ORDERS[0]
    descending: bool = False
    transform: Transform = field(default_factory=Transform)

    def __post_init__(self) -> None:
        words = len(self.wanted.words.split())
        if words > _MAX_WORDS:
            raise Refused(f"search: {words} words; at most {_MAX_WORDS} are allowed")
        if self.order not in curate.IMAGE_ORDERS:
            raise Refused(f"order: expected one of {', '.join(curate.IMAGE_ORDERS)}")

    @property
    def is_plain(self) -> bool:
        """Whether all images are shown in their own order, so that they need not be read first."""
        return self.wanted == curate.ImageFilter() and self.order == curate.IMAGE_ORDERS[0] and not self.descending

    def images(self, now: FolderNow) -> Sequence[curate.FolderImage]:
        """The images, in order. The list is kept as long as the folder stays as it is."""
        if self.is_plain:
            return now.view.images
        if self.wanted.alike is None and self.order != _SIMILARITY:
            return now.result(self, lambda: self._select(now, ()))
        groups = groups_of(now)
        if groups is None:
            raise Refused("look-alikes are not known yet, or images changed since; find look-alikes first", 409)
        return now.result((self, id(groups)), lambda: self._select(now, groups))

    def _select(self, now: FolderNow, groups: list[list[str]] | tuple[()]) -> list[curate.FolderImage]:
        found = curate.select_images(now.view.images, self.wanted, transform=self.transform, groups=groups)
        order = {"descending": self.descending, "transform": self.transform, "groups": groups}
        return curate.sort_images(found, self.order, **order)
