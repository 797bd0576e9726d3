"""The rows of the index: their layout on disk, their names in code, and what the numbers in them mean.

A new column of a sample is added here: in `SAMPLE`, `SampleRow` and its struct, and in `SampleFacts`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

SAMPLE = np.dtype(
    [
        ("variants", "<u8"),
        ("captions", "<u8"),
        ("caption_count", "<u4"),
        ("bucket", "<u4"),
        ("set", "<u4"),
        ("source", "<u4"),
        ("repeats", "<u4"),
        ("weight", "<f4"),
        ("original_size", "<i4", 2),
        ("crop", "<i4", 4),
    ]
)
ENTRY = np.dtype([("key", "V16"), ("refs", "<u8"), ("leaves", "<u8"), ("layout", "<u4"), ("field", "<u4")])
REF = np.dtype([("location", "<u8"), ("hash", "V16")])
OFFSET_BITS = 40  # a location is shard << 40 | offset in the shard's file
NO_BUCKET = 0xFFFFFFFF
NO_ROUTE = 0xFFFFFFFF
NO_LAYOUT = 0xFFFFFFFF  # the sample lacks the field
COLUMNS = ("bucket", "set", "repeats", "weight", "original_size", "crop")  # of SAMPLE, those that mean something alone

_SAMPLE_ROW = struct.Struct("<QQIIIIIf2i4i")
_ENTRY_ROW = struct.Struct("<QQII")  # after the key


@dataclass(frozen=True)
class SampleFacts:
    """Everything stored about a sample except its entries. A single caption may be given as one string."""

    captions: Sequence[str] = ()
    source: str = ""
    original_size: tuple[int, int] = (0, 0)
    crop: tuple[int, int, int, int] = (0, 0, 0, 0)
    repeats: int = 1
    weight: float = 1.0
    set: str = ""


class SampleRow(NamedTuple):
    """One row of `samples`: the facts with texts replaced by their numbers, and where its variants start."""

    variants: int
    captions: int
    caption_count: int
    bucket: int
    set: int
    source: int
    repeats: int
    weight: float
    width: int
    height: int
    crop_left: int
    crop_top: int
    crop_width: int
    crop_height: int

    @property
    def original_size(self) -> tuple[int, int]:
        return self.width, self.height

    @property
    def crop(self) -> tuple[int, int, int, int]:
        return self.crop_left, self.crop_top, self.crop_width, self.crop_height


class EntryRow(NamedTuple):
    """One row of `entries` without its key."""

    refs: int
    leaves: int
    layout: int
    field: int


def pack_sample_row(facts: SampleFacts, captions: int, bucket: int, set_number: int, source: int) -> bytes:
    """The row of a sample whose captions, set and source have these numbers. Its variants start where they will."""
    return _SAMPLE_ROW.pack(
        0,
        captions,
        len(facts.captions),
        bucket,
        set_number,
        source,
        facts.repeats,
        facts.weight,
        *facts.original_size,
        *facts.crop,
    )


def pack_entry_row(key: bytes, refs: int, leaves: int, layout: int, field: int) -> bytes:
    return key + _ENTRY_ROW.pack(refs, leaves, layout, field)


def read_sample_row(samples: memoryview, i: int) -> SampleRow:
    return SampleRow._make(_SAMPLE_ROW.unpack_from(samples, i * _SAMPLE_ROW.size))


def read_entry_row(entries: memoryview, entry: int) -> EntryRow:
    return EntryRow._make(_ENTRY_ROW.unpack_from(entries, entry * ENTRY.itemsize + 16))


def split_location(location: int) -> tuple[int, int]:
    """(shard, offset in its file)."""
    return location >> OFFSET_BITS, location & (1 << OFFSET_BITS) - 1


def route_type(field_count: int) -> np.dtype:
    """A row of `routes`: its row layout, then location and leaves of every field."""
    return np.dtype([("layouts", "<u4"), ("reserved", "<u4"), ("fields", "<u8", (field_count, 2))])


@lru_cache(64)
def route_row(field_count: int) -> struct.Struct:
    """The same, for one row at a time."""
    return struct.Struct("<II" + "QQ" * field_count)


assert _SAMPLE_ROW.size == SAMPLE.itemsize and ENTRY.itemsize == 16 + _ENTRY_ROW.size
