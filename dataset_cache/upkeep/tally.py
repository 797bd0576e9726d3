"""What the samples of a generation refer to, counted in passes over its index: some bytes per sample in memory."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..index import Index, Rows, captions_of, listed_samples, variants_of
from ..write import CheckedGeneration


@dataclass(frozen=True)
class Tally:
    """Counts per set, per field and per string."""

    epoch: int  # samples with their repeats
    sets: np.ndarray
    variants: np.ndarray
    bytes: np.ndarray  # of all variants, if nothing were shared
    uses: np.ndarray  # [fields, entries]: whether a sample has the entry as a variant of the field
    captions: np.ndarray  # how often each string is a caption

    @property
    def entries(self) -> list[int]:
        """The distinct entries of each field."""
        return self.uses.sum(1).tolist()


def count_samples(current: CheckedGeneration) -> Tally:
    manifest, index = current.manifest, current.index
    width = len(manifest.fields)
    sizes = [sum(spec.nbytes for spec in index.layout(n).specs) for n in range(index.lengths["layout_ends"])]
    nbytes, layouts, epoch = np.array(sizes, np.int64), Rows(index.files, "entries", "layout"), 0
    sets, variants, total = (np.zeros(count, np.int64) for count in (len(manifest.sets), width, width))
    uses, captions = np.zeros((width, index.entry_count), bool), np.zeros(index.lengths["string_ends"], np.uint32)
    for part, rows in listed_samples(index):
        counts, flat = variants_of(rows, part.arrays.variants, part.first["variants"], width)
        fields = np.repeat(np.arange(counts.size), counts.reshape(-1)) % max(1, width)
        epoch += int(rows["repeats"].sum())
        sets += np.bincount(rows["set"], minlength=len(sets))
        variants += counts.sum(0, dtype=np.int64)
        np.add.at(total, fields, nbytes[layouts.take(flat)])
        uses[fields, flat] = True
        np.add.at(captions, captions_of(part.arrays.captions, part.first["captions"], rows), np.uint32(1))
    return Tally(epoch, sets, variants, total, uses, captions)


def count_empty(index: Index, captions: np.ndarray) -> int:
    """How many captions are empty, by how often each string is one."""
    number = end = found = 0
    for ends in Rows(index.files, "string_ends").chunks():
        empty = np.flatnonzero(np.diff(ends, prepend=np.uint64(end)) == 0)
        found += int(captions[empty + number].sum())
        number, end = number + len(ends), int(ends[-1])
    return found


def most_common(index: Index, captions: np.ndarray, limit: int) -> list[tuple[str, int]]:
    """The most common captions, and how often each comes; of equally common ones those that come first."""
    found: Counter[str] = Counter()
    for number in _most_common(index, captions, limit * len(index.parts)):  # each file may have a text once
        found[index.string(number)] += int(captions[number])
    return found.most_common(limit)


def _most_common(index: Index, captions: np.ndarray, limit: int) -> list[int]:
    used = captions[captions > 0]
    if not len(used):
        return []
    used.partition(max(0, len(used) - limit))
    least = int(used[max(0, len(used) - limit)])
    above = captions > least
    more = int(above.sum())
    found = _first_of(index, above, more) + _first_of(index, captions == least, limit - more)
    return sorted(found, key=lambda number: -int(captions[number]))


def _first_of(index: Index, wanted: np.ndarray, limit: int) -> list[int]:
    """The first captions among these strings, each once, in the order of the samples."""
    found: dict[int, None] = {}
    for numbers in _caption_chunks(index) if limit else ():
        distinct, first = np.unique(numbers[wanted[numbers]], return_index=True)
        found |= dict.fromkeys(distinct[np.argsort(first)].tolist())
        if len(found) >= limit:
            break
    return list(found)[:limit]


def _caption_chunks(index: Index) -> Iterator[np.ndarray]:
    return (captions_of(part.arrays.captions, part.first["captions"], rows) for part, rows in listed_samples(index))
