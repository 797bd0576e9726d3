"""The next index: it continues the files of the last one with a file of what is new, or is written again as one file.

Files are merged like the digits of a counter: a new one takes in those before it that are hardly larger. So there are
few, and each row is written a few times at most. Of files that stay, only what is used is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import CacheError
from ..format import SHARDS, Manifest, ShardFile, Storage
from ..index import (
    NO_BUCKET,
    Index,
    IndexArrays,
    concatenated,
    entries_of_rows,
    index_size,
    join_widths,
    repeat_rows,
    route_type,
    take_samples,
    used_entries,
)
from .checked import SMALL_INDEX, CheckedGeneration, lost_shards, require_consistent
from .index_builder import Added, IndexBuilder
from .publishing import publish
from .repack import merge_small
from .sameness import find_same

MOST_RUNS = 1024
_CHUNK = 1 << 16  # samples


def publish_next(storage: Storage, base: CheckedGeneration | None, builder: IndexBuilder, draft: Manifest) -> Manifest:
    """Publish what the builder collected after `base`. The draft lacks what the index decides: counts and buckets."""
    added, named = builder.finish(), [builder.find(bytes.fromhex(key)) or 0 for key in draft.named.values()]
    if base is not None and base.stored and (same := find_same(base, builder, added, draft)) is not None:
        _refuse_lost(storage, same.shards)
        return same
    growth = find_growth(base, added, builder.fields)
    if growth is None:
        arrays = whole_index(base, added, len(builder.fields))
        arrays, shards, number = merge_small(storage, arrays, draft.shards, draft.next_shard)
        used = used_entries(arrays, len(builder.fields), named)
        counts = {"samples": len(arrays.samples), "entries": len(arrays.entries), "unused": int((~used).sum())}
        sizes = bucket_sizes(arrays.samples["bucket"], len(builder.buckets))
    else:
        arrays, shards, number = growth.merge_small_shards(storage, growth.arrays(), draft.shards, draft.next_shard)
        counts = growth.counts(named, draft.named.items() >= growth.base.manifest.named.items())
        sizes = growth.bucket_sizes(len(builder.buckets))
        draft = draft.with_segments(growth.base.manifest.index_files[: growth.stays], growth.runs)
    _refuse_lost(storage, shards)
    rows = tuple({"dtype": d, "shape": list(s), "samples": int(sizes[n])} for (d, s), n in builder.buckets.items())
    kept = [part.arrays for part in growth.kept] if growth else []
    draft = replace(draft, shards=tuple(shards), next_shard=number, counts=counts, buckets=rows)
    return publish(storage, arrays, draft, kept)


def _refuse_lost(storage: Storage, shards: Sequence[ShardFile]) -> None:
    lost = lost_shards(storage, shards)
    if lost:
        raise CacheError(
            f"{storage.path / SHARDS / shards[lost[0]].file}: has vanished or was truncated meanwhile; nothing was "
            "published; run the same save again to store what was in it"
        )


def whole_index(base: CheckedGeneration | None, added: Added, fields: int) -> IndexArrays:
    """The arrays of an index of one file: nothing that is damaged is written again."""
    if base is None:
        return added.arrays
    old = concatenated(_intact(base, 0))
    if not base.thorough:
        require_consistent(base)
    joined = join_widths(old, len(base.manifest.fields), added.arrays, fields)
    rows = [np.arange(first, first + count) for first, count in added.runs]
    if added.runs == ((0, len(joined.samples)),):
        return joined
    return take_samples(joined, fields, np.concatenate(rows or [np.empty(0, np.int64)]))


def find_growth(base: CheckedGeneration | None, added: Added, fields: Sequence[str]) -> "Growth | None":
    """How the next index continues the last one; None if it is written again as one file."""
    if base is None or not base.stored or list(base.manifest.fields) != list(fields) or len(added.runs) > MOST_RUNS:
        return None
    listed = sum(count for _, count in added.runs)
    if 2 * listed < base.index.lengths["samples"] + len(added.arrays.samples):  # most rows are in no run
        return None
    if repeat_rows(added.runs):
        return None
    files, size = base.manifest.index_files, _file_size(added.arrays, len(fields))
    stays = len(files)
    while stays and files[stays - 1].bytes <= max(2 * size, SMALL_INDEX):
        stays -= 1
        size += files[stays].bytes
    return Growth(base, added, stays) if stays else None


@dataclass(frozen=True)
class Growth:
    """What is new in a generation whose index continues `stays` files of the last one."""

    base: CheckedGeneration
    added: Added
    stays: int

    @property
    def kept(self) -> tuple[Index, ...]:
        return self.base.index.parts[: self.stays]

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The runs to record; none if they are all rows in order."""
        rows = self.base.index.lengths["samples"] + len(self.added.arrays.samples)
        return () if self.added.runs == ((0, rows),) else self.added.runs

    def arrays(self) -> IndexArrays:
        """The arrays of the new file: the files that it takes in, and what is new."""
        return concatenated([*_intact(self.base, self.stays), self.added.arrays])

    def merge_small_shards(
        self, storage: Storage, arrays: IndexArrays, shards: Sequence[ShardFile], next_number: int
    ) -> tuple[IndexArrays, list[ShardFile], int]:
        """Merge the small shards that only the new file refers to."""
        last, first = self.kept[-1], self.base.manifest.index_files[self.stays - 1].shards
        entries = arrays.entries.copy()
        entries["refs"] -= np.uint64(last.lengths["refs"])
        files = [*(part.arrays for part in self.kept), arrays]
        texts = {name: np.concatenate([getattr(file, name) for file in files]) for name in ("layouts", "layout_ends")}
        alone = replace(arrays, entries=entries, **texts)
        merged, all_shards, next_number = merge_small(storage, alone, shards, next_number, first)
        return replace(arrays, refs=merged.refs), all_shards, next_number

    def counts(self, named: Sequence[int], same_names: bool) -> dict[str, int]:
        """The counts of the manifest."""
        return {
            "samples": sum(count for _, count in self.added.runs),
            "entries": self.base.index.entry_count + len(self.added.arrays.entries),
            "unused": self._count_unused(named, same_names),
        }

    def bucket_sizes(self, buckets: int) -> np.ndarray:
        """The samples of each of so many buckets."""
        numbers = self.added.arrays.samples["bucket"]
        if self._keeps_all:
            stated = np.array([bucket["samples"] for bucket in self.base.manifest.buckets], np.int64)
            found = np.pad(stated, (0, buckets - len(stated)))
        else:
            old = [part.arrays.samples["bucket"][a:b] for part, a, b in self._old_rows()]
            found = sum((bucket_sizes(column, buckets) for column in old), np.zeros(buckets, np.int64))
        return found + bucket_sizes(numbers, buckets)

    @property
    def _keeps_all(self) -> bool:
        """Whether the samples of the base come first, all and in order."""
        before, now = self.base.index.runs, self.added.runs
        if not before:
            return True
        at = len(before) - 1
        return (
            now[:at] == before[:at]
            and now[at : at + 1] != ()
            and (now[at][0] == before[at][0] and now[at][1] >= before[at][1])
        )

    def _old_rows(self) -> Iterator[tuple[Index, int, int]]:
        """The rows of the base that are listed: (file, first row in it, the row behind the last)."""
        for first, count in self.added.runs:
            for part in self.base.index.parts:
                start, length = part.first["samples"], len(part.arrays.samples)
                a, b = max(first, start), min(first + count, start + length)
                for at in range(a, b, _CHUNK):
                    yield part, at - start, min(at + _CHUNK, b) - start

    def _count_unused(self, named: Sequence[int], same_names: bool) -> int:
        """Entries that neither a sample nor a name uses. If all were used before, only new ones can be."""
        before, new = self.base.index.entry_count, self.added.arrays
        flat = entries_of_rows(new.samples, new.variants, self.base.index.lengths["variants"], self._width)
        if self.base.manifest.counts.get("unused") == 0 and same_names and self._keeps_all:
            used = np.zeros(len(new.entries), bool)
            used[flat[flat >= before] - before] = True
            used[[number - before for number in named if number >= before]] = True
            return int((~used).sum())
        used = np.zeros(before + len(new.entries), bool)
        used[flat] = True
        used[list(named)] = True
        for part, a, b in self._old_rows():
            used[
                entries_of_rows(part.arrays.samples[a:b], part.arrays.variants, part.first["variants"], self._width)
            ] = True
        return int((~used).sum())

    @property
    def _width(self) -> int:
        return len(self.base.manifest.fields)


def _intact(base: CheckedGeneration, first: int) -> list[IndexArrays]:
    """The arrays of the files from number `first` on, which are written again: damage is not carried on."""
    parts = base.index.parts[first:]
    for part, file in zip(parts, base.manifest.index_files[first:], strict=True) if base.stored else ():
        part.require(file.hash)
    return [part.arrays for part in parts]


def _file_size(arrays: IndexArrays, fields: int) -> int:
    """The size of the file that these arrays become, with routes and orders."""
    rows = len(arrays.samples) * route_type(fields).itemsize
    return index_size(arrays) + rows + 4 * (len(arrays.entries) + len(arrays.refs))


def bucket_sizes(numbers: np.ndarray, buckets: int) -> np.ndarray:
    """The samples of each of so many buckets."""
    return np.bincount(numbers[numbers != NO_BUCKET], minlength=buckets)
