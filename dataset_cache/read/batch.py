"""Reads batches: the tensors of several samples, read straight into prepared memory with few calls."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from ...errors import CacheError
from ..format import (
    ALIGNMENT,
    NAMES,
    NO_BUCKET,
    NO_LAYOUT,
    OFFSET_BITS,
    UNREADABLE,
    EntryRow,
    Index,
    Layout,
    TensorSpec,
    blob_hash,
    damage,
    tensor_bytes,
    tensor_distances,
)
from .buffers import BatchBuffers, Division, Memory, RowLayouts, divide
from .dataset import Batch, Fields
from .shard_files import ShardFiles

_OFFSET_MASK = (1 << OFFSET_BITS) - 1
_MAX_DIVISIONS = 1024
_NO_ENTRY = EntryRow(0, 0, NO_LAYOUT, 0)


class _Form:
    """What rows with the same layouts have in common. Compared by identity: there is one per set of layouts."""

    def __init__(self, layouts: RowLayouts) -> None:
        self.layouts = layouts
        self.reads = [layout.read if layout else _nothing for layout in layouts]
        self.fields = [f for f, layout in enumerate(layouts) if layout is not None]
        sizes = [tensor_distances(layout) if layout else ([], 0) for layout in layouts]
        self.distances = [distances for distances, _ in sizes]
        self.nbytes = [nbytes for _, nbytes in sizes]
        # If all fields of a row are adjacent: where the further fields start after the first, and the total size.
        self.first = self.fields[0] if self.fields else 0
        self.starts: list[tuple[int, int]] = []
        self.total = 0
        for f in self.fields:
            self.total += -self.total % ALIGNMENT
            self.starts.append((f, self.total))
            self.total += self.nbytes[f]
        self.starts = self.starts[1:]

    def lies_together(self, places: Sequence[Sequence[int]]) -> bool:
        """Whether the tensors of every field are adjacent."""
        return all(
            [place - field[0] for place in field] == distances
            for field, distances in zip(places, self.distances, strict=True)
        )


# One row: its form, the locations of its fields, where their leaves start. If a field's tensors are not adjacent, there
# are no locations, and the last item has those of all tensors. A tuple: a dataclass would double the cost of a row.
_Row = tuple[_Form, Sequence[int] | None, Sequence[int], Sequence[Sequence[int]]]
_Pick = Callable[[tuple[int, ...]], tuple[int, ...]]
_Route = tuple[_Form, _Pick, _Pick]
_Reader = Callable[[int, int, Sequence[memoryview], int], None]  # as `ShardFiles.read`


class BatchReader:
    """Reads batches of one dataset. It caches no tensors."""

    def __init__(self, index: Index, files: ShardFiles, fields: tuple[str, ...], check: bool) -> None:
        self._index, self._files, self._all_fields = index, files, fields
        self._check = check
        self._forms: dict[tuple[int, ...], _Form] = {}
        self._routed: dict[tuple[str, ...], dict[int, _Route]] = {}
        self._divisions: dict[tuple, Division] = {}

    def read(
        self,
        indices: list[int],
        fields: tuple[str, ...],
        variants: Mapping[str, Sequence[int]],
        buffers: BatchBuffers | None,
        captions: Callable[[], list[str]],
    ) -> Batch:
        try:
            rows = self._rows(indices, fields, variants)
            forms = tuple([row[0] for row in rows])
            division = self._divisions.get((fields, forms)) or self._divide(indices, fields, forms)
            if buffers is None:
                memory = Memory(torch.empty(division.nbytes, dtype=torch.uint8), division)
            else:
                memory = buffers.memory(division)
            self._fill(memory, rows)
            if self._check:
                for b, i in enumerate(indices):
                    own = [memory.tensors(f)[b] for f in range(len(fields))]
                    self._compare(i, self._entries(i, b, fields, variants), own)
            # Built on access: training needs only some of them.
            structures = Fields(fields, partial(self._structures, rows, memory, fields))
            return Batch(indices, memory.latents, structures, captions)
        except UNREADABLE as error:
            raise damage(error) from error

    def _rows(self, indices: list[int], fields: tuple[str, ...], variants: Mapping[str, Sequence[int]]) -> list[_Row]:
        count, route = self._index.sample_count, self._index.route
        known = self._routed.setdefault(fields, {})
        rows = []
        for b, i in enumerate(indices):
            if not 0 <= i < count:
                raise CacheError(f"sample {i} does not exist: the dataset has {count}")
            numbers = None if variants else route(i)
            if numbers is None:
                rows.append(self._find(i, b, fields, variants))
                continue
            form, locations, leaves = known.get(numbers[0]) or self._follow(fields, numbers[0])
            rows.append((form, locations(numbers), leaves(numbers), ()))
        return rows

    def _follow(self, fields: tuple[str, ...], number: int) -> _Route:
        """How to read a route with this row layout: its form, and which of its numbers are locations and leaves."""
        columns = [self._all_fields.index(name) for name in fields]
        numbers = self._index.row_layout(number)
        form = self._form(tuple([numbers[column] for column in columns]))
        route = form, _picker([2 + 2 * c for c in columns]), _picker([3 + 2 * c for c in columns])
        self._routed[fields][number] = route
        return route

    def _find(self, i: int, b: int, fields: tuple[str, ...], variants: Mapping[str, Sequence[int]]) -> _Row:
        """A row without a route: a sample with variants, or with tensors that were stored before it."""
        index = self._index
        layouts, starts, leaves, refs = [], [], [], []
        for entry in self._entries(i, b, fields, variants):
            row = index.entry_row(entry) if entry >= 0 else _NO_ENTRY
            layouts.append(row.layout)
            leaves.append(row.leaves)
            refs.append(index.locations(row.refs, len(index.layout(row.layout).specs)) if entry >= 0 else ())
            starts.append(refs[-1][0] if refs[-1] else 0)
        form = self._form(tuple(layouts))
        return form, starts if form.lies_together(refs) else None, leaves, refs

    def _entries(self, i: int, b: int, fields: tuple[str, ...], variants: Mapping[str, Sequence[int]]) -> list[int]:
        """The entry of each field of row `b`; -1 if the sample lacks the field."""
        choices = self._index.entries_of(i, len(self._all_fields))
        entries = []
        for name in fields:
            found = choices[self._all_fields.index(name)]
            chosen = variants[name][b] if name in variants else 0
            if found and not 0 <= chosen < len(found):
                raise CacheError(f"sample {i}: variant {chosen} of {name} does not exist, it has {len(found)}")
            entries.append(found[chosen] if found else -1)
        return entries

    def _form(self, numbers: tuple[int, ...]) -> _Form:
        form = self._forms.get(numbers)
        if form is None:
            layouts = tuple(self._index.layout(n) if n != NO_LAYOUT else None for n in numbers)
            self._check_sizes(layouts)
            form = self._forms[numbers] = _Form(layouts)
        return form

    def _check_sizes(self, layouts: RowLayouts) -> None:
        """Refuse tensors larger than the largest shard: memory is allocated before locations are checked."""
        largest = max((shard.bytes for shard in self._files.shards), default=0)
        for spec in [spec for layout in layouts if layout is not None for spec in layout.specs]:
            if spec.nbytes > largest:
                raise CacheError(f"the index is damaged: a tensor of {spec.nbytes:,} bytes is larger than every shard")

    def _divide(self, indices: list[int], fields: tuple[str, ...], forms: tuple[_Form, ...]) -> Division:
        if len(self._divisions) >= _MAX_DIVISIONS:
            self._divisions.clear()
        latent = fields.index("latent") if "latent" in fields and self._one_bucket(indices) else None
        if latent is not None and len({_stackable(form.layouts[latent]) for form in forms}) > 1:
            raise CacheError("the index is damaged: samples of one bucket have latents of different shapes")
        division = self._divisions[fields, forms] = divide(tuple(form.layouts for form in forms), latent)
        return division

    def _one_bucket(self, indices: list[int]) -> bool:
        """Whether the latents of the rows can be stacked. Refuses rows of different buckets."""
        buckets = {self._index.sample_row(i).bucket for i in indices}
        if len(buckets) > 1:
            raise CacheError(f"samples {indices} are in {len(buckets)} different buckets; a batch must be from one")
        return NO_BUCKET not in buckets

    def _fill(self, memory: Memory, rows: list[_Row]) -> None:
        """One read per row if its fields are adjacent; at an address, all of them at once."""
        later: list[tuple[int, int, Sequence[memoryview], int]] = []
        read: _Reader = (lambda *one: later.append(one)) if self._files.is_remote else self._files.read
        whole = memory.whole
        for b, (form, locations, _, refs) in enumerate(rows):
            if locations is None:
                self._read_tensors(read, memory, b, refs)
                continue
            if not form.total:
                continue
            first = locations[form.first]
            for f, start in form.starts:
                if locations[f] - first != start:
                    self._read_fields(read, memory, b, form, locations)
                    break
            else:
                read(first >> OFFSET_BITS, first & _OFFSET_MASK, whole[b], form.total)
        if later:
            self._files.read_at_once(later)

    @staticmethod
    def _read_fields(read: _Reader, memory: Memory, b: int, form: _Form, locations: Sequence[int]) -> None:
        for f in form.fields:
            if form.nbytes[f]:
                shard, offset = locations[f] >> OFFSET_BITS, locations[f] & _OFFSET_MASK
                read(shard, offset, memory.field(b, f), form.nbytes[f])

    @staticmethod
    def _read_tensors(read: _Reader, memory: Memory, b: int, refs: Sequence[Sequence[int]]) -> None:
        for f, places in enumerate(refs):
            for location, view in zip(places, memory.parts(b, f), strict=True):
                if len(view):
                    read(location >> OFFSET_BITS, location & _OFFSET_MASK, [view], len(view))

    def _structures(self, rows: list[_Row], memory: Memory, fields: tuple[str, ...], name: str) -> list:
        """The structures of one field, one per row."""
        f, buffer = fields.index(name), self._index.leaves
        try:
            return [form.reads[f](own, buffer, leaves[f]) for (form, _, leaves, _), own in zip(rows, memory.tensors(f))]
        except UNREADABLE as error:
            raise damage(error) from error

    def _compare(self, i: int, entries: Sequence[int], tensors: Sequence[tuple[torch.Tensor, ...]]) -> None:
        """Compare what was read with the checksums in the index."""
        for entry, field in zip(entries, tensors, strict=True):
            first = self._index.entry_row(entry).refs if field else 0
            for n, tensor in enumerate(field):
                data = tensor_bytes(tensor)
                if blob_hash(data, NAMES[tensor.dtype], tuple(tensor.shape)) != self._index.hash_of(first + n):
                    source = self._index.string(self._index.sample_row(i).source)
                    raise CacheError(
                        f"sample {i} ({source}): its stored bytes are damaged; encode it again, or drop it with repair"
                    )


def _stackable(layout: Layout | None) -> TensorSpec:
    """The part of a latent's form that must be equal within a bucket."""
    slot = layout.slot_at("samples") if layout is not None else None
    if layout is None or slot is None or layout.specs[slot].shape[:1] != (1,):
        raise CacheError("the index is damaged: a sample with a bucket has no latent [1, …]")
    return layout.specs[slot]


def _nothing(*_: Any) -> None:
    """The value of a field that a row lacks."""


def _picker(columns: list[int]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    if len(columns) > 1:
        return itemgetter(*columns)
    return lambda numbers: tuple([numbers[column] for column in columns])
