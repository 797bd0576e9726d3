"""Routes: for every sample with one entry a field, where the bytes of each entry start. One look-up instead of many.

They repeat what entries and references say, in the form that reading a batch needs: a row layout (the layouts of all
fields, numbered) and, per field, a location and where the leaves start. Samples with variants, or with an entry whose
tensors do not lie together, have no route and are read the long way.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from .shard import ALIGNMENT
from .skeleton import Layout

NO_ROUTE = 0xFFFFFFFF
NO_LAYOUT = 0xFFFFFFFF  # the sample lacks the field


def route_type(field_count: int) -> np.dtype:
    """A row of the array: its row layout, then location and leaves of every field."""
    return np.dtype([("layouts", "<u4"), ("reserved", "<u4"), ("fields", "<u8", (field_count, 2))])


@lru_cache(64)
def route_row(field_count: int) -> struct.Struct:
    return struct.Struct("<II" + "QQ" * field_count)


def tensor_distances(layout: Layout) -> tuple[list[int], int]:
    """How far behind its entry's first byte each tensor stands when they lie together, and the bytes in all."""
    position, distances = 0, []
    for spec in layout.specs:
        position += -position % ALIGNMENT
        distances.append(position)
        position += spec.nbytes
    return distances, position


def make_routes(
    counts: np.ndarray, flat: np.ndarray, entries: np.ndarray, locations: np.ndarray, layouts: Sequence[Layout]
) -> tuple[np.ndarray, np.ndarray]:
    """(row layouts [R, fields], routes) for samples with these numbers of variants, all at once."""
    samples, width = counts.shape
    routes = np.zeros(samples, route_type(width))
    together = _lie_together(entries, locations, layouts)
    # Where each sample's entry of a field stands in `flat`; meaningless where it has none.
    places = np.cumsum(counts.reshape(-1), dtype=np.int64).reshape(samples, width) - counts
    present = counts == 1
    chosen = flat[np.minimum(places, max(len(flat) - 1, 0))].astype(np.int64) if len(flat) else places * 0
    if len(entries):
        rows = entries[chosen]
        numbers = np.where(present, rows["layout"], NO_LAYOUT).astype("<u4")
        first = np.minimum(rows["refs"].astype(np.int64), max(len(locations) - 1, 0))
        routes["fields"][..., 0] = np.where(present, locations[first], 0) if len(locations) else 0
        routes["fields"][..., 1] = np.where(present, rows["leaves"], 0)
        simple = (present & together[chosen] | (counts == 0)).all(1)
    else:
        numbers, simple = np.full((samples, width), NO_LAYOUT, "<u4"), (counts == 0).all(1)
    row_layouts, which = np.unique(numbers, axis=0, return_inverse=True)
    routes["layouts"] = np.where(simple, which.reshape(-1), NO_ROUTE)
    return row_layouts.astype("<u4").reshape(len(row_layouts), width), routes


def _lie_together(entries: np.ndarray, locations: np.ndarray, layouts: Sequence[Layout]) -> np.ndarray:
    """Which entries' tensors stand one behind the other, as a writer leaves them unless one was stored before."""
    result = np.ones(len(entries), bool)
    for number, layout in enumerate(layouts):
        members = np.flatnonzero(entries["layout"] == number)
        distances, _ = tensor_distances(layout)
        if len(distances) > 1:
            first = entries["refs"][members].astype(np.int64)
            found = locations[first[:, None] + np.arange(len(distances))]
            result[members] = (found - found[:, :1] == np.asarray(distances, np.uint64)).all(1)
    return result
