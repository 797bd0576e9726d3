"""The arrays of an index file that only repeat the others, in an order or form that is quick to use: made in chunks."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..format import Layout, MemoryFile
from .index import Index
from .index_arrays import distinct_rows, layout_rows, layouts_of
from .index_file import ARRAY_TYPES, Chunks, IndexArrays, index_pieces
from .index_rows import NO_ROUTE, route_type
from .passes import Rows, derived_routes, sort_orders, variant_chunks


def derive(arrays: IndexArrays, field_count: int, before: Sequence[IndexArrays] = ()) -> dict[str, Chunks]:
    """Row layouts, routes and orders of a file. It may continue others: its samples may use their entries."""
    files = [*before, arrays]
    rows = _row_layouts(files, field_count)
    layouts = [layout for file in files for layout in layouts_of(file)]
    made = {
        "row_layouts": (rows.size, lambda: (rows.reshape(-1),)),
        "routes": (
            len(arrays.samples) * route_type(field_count).itemsize,
            lambda: _routes(files, layouts, rows, field_count),
        ),
        "entry_order": (len(arrays.entries), lambda: sort_orders(Rows([arrays], "entries", "key"))),
        "ref_order": (len(arrays.refs), lambda: sort_orders(Rows([arrays], "refs", "hash"))),
    }
    return {name: Chunks(ARRAY_TYPES[name], length, make) for name, (length, make) in made.items()}


def index_in_memory(arrays: IndexArrays, field_count: int) -> Index:
    """The index that would be opened after publishing these arrays."""
    pieces = index_pieces(arrays, derived=derive(arrays, field_count))
    file = MemoryFile(b"".join(pieces), "index in memory")
    return Index(file, file.size, field_count, None)


def _row_layouts(files: Sequence[IndexArrays], width: int) -> np.ndarray:
    """The distinct rows of layouts of the samples of the last file."""
    layouts, found = Rows(files, "entries", "layout"), [np.empty((0, width), "<u4")]
    for counts, flat in variant_chunks(files, len(files) - 1, width):
        found.append(distinct_rows(layout_rows(counts, layouts.take(flat)))[0])
    return distinct_rows(np.concatenate(found))[0]


def _routes(
    files: Sequence[IndexArrays], layouts: Sequence[Layout], rows: np.ndarray, width: int
) -> Iterator[np.ndarray]:
    numbers = {tuple(row): number for number, row in enumerate(rows.tolist())}
    first = sum(len(file.row_layouts) for file in files[:-1]) // max(1, width)
    for own, routes in derived_routes(files, len(files) - 1, layouts, width):
        has_route = routes["layouts"] != NO_ROUTE
        named = np.array([first + numbers[tuple(row)] for row in own.tolist()], np.uint32)
        routes["layouts"][has_route] = named[routes["layouts"][has_route]]
        yield routes
