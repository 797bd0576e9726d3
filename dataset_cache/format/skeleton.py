"""The skeleton of a structure: its nesting without tensors and scalars.

`split` turns a nested value into (layout, leaves, tensors); `Layout.read` joins the three again.
Tensors may be stored without their padding (see padding.py); the layout has what is needed to restore it.
A layout is JSON, equal for all values of the same form, so a million SDXL sizes share one. The leaves (numbers,
strings, bytes) are packed into one row of bytes whose form the layout defines.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from ...errors import CacheError
from .padding import read_paddings, restore, saved_bytes
from .splitter import FIXED, MAX_DEPTH, NUMPY_TYPES, VARIABLE, Splitter
from .tensors import NAMES, codec_named, read_spec

Build = Callable[[tuple], Any]  # from the tensors and leaves of a value to the value


@dataclass(frozen=True)
class Split:
    """A structure in parts. `layout` is canonical JSON: equal text means equal skeleton and tensor shapes.

    If tensors were trimmed, `whole` is the same structure without that, and `saved` the difference in bytes.
    """

    layout: str
    leaves: bytes
    tensors: list[torch.Tensor]
    whole: "Split | None" = None
    saved: int = 0


def split(structure: Any, place: str = "") -> Split:
    """Split a structure. Refuses what cannot be stored, with its path below `place` and its type."""
    splitter = Splitter()
    node = splitter.node(structure, place, 0)
    return Split(_layout_text(specs_of(splitter.tensors), node), splitter.pack(), splitter.tensors)


def specs_of(tensors: list[torch.Tensor]) -> tuple:
    return tuple([(NAMES[tensor.dtype], tuple(tensor.shape)) for tensor in tensors])


def layout_text(specs: tuple, root: Any, padded: tuple = ()) -> str:
    """The layout as JSON."""
    parts = {"tensors": specs, "padded": padded, "root": root} if padded else {"tensors": specs, "root": root}
    return _to_json(parts)


def _to_json(body: dict[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"))


_layout_text = lru_cache(1024)(layout_text)  # most samples of a dataset share a few


class Layout:
    """A parsed skeleton. `specs` describe its tensors as stored; `read` builds the value from them and a row of leaves.

    `saved` is the number of bytes that trimmed padding would take.
    """

    def __init__(self, text: str) -> None:
        self._kinds: list[str] = []
        try:
            parsed = json.loads(text)
            self.specs = tuple(read_spec(spec) for spec in parsed["tensors"])
            self._paddings = read_paddings(parsed.get("padded", ()), self.specs)
            self._root = parsed["root"]
            self._build = self._compile(self._root, 0)
        except CacheError:
            raise
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise CacheError(f"a stored layout is damaged: {error!r}") from error
        self._fixed = struct.Struct("<" + "".join(FIXED.get(kind) or f"{_numpy_size(kind)}s" for kind in self._kinds))
        self._variable = [(i, VARIABLE[kind]) for i, kind in enumerate(self._kinds) if kind in VARIABLE]
        self._numpy = [(i, np.dtype(kind)) for i, kind in enumerate(self._kinds) if kind in NUMPY_TYPES]
        self.saved = sum(saved_bytes(padding, self.specs) for padding in self._paddings)
        # `read` in two steps: `restore`, if something was trimmed, then `join`.
        self.restore = partial(restore, self._paddings) if self._paddings else None
        self.join = self._reader()
        self.read = self._restore_and_join if self._paddings else self.join

    def _restore_and_join(self, tensors: tuple[torch.Tensor, ...], buffer: memoryview, offset: int) -> Any:
        return self.join(restore(self._paddings, tensors), buffer, offset)

    def _reader(self) -> Callable[[tuple[torch.Tensor, ...], memoryview, int], Any]:
        """`read(tensors, buffer, offset)` builds the value from tensors and the row of leaves at `offset`."""
        build, unpack_from = self._build, self._fixed.unpack_from
        if not self._kinds:
            return lambda tensors, buffer, offset: build(tensors)
        if not self._variable and not self._numpy:
            return lambda tensors, buffer, offset: build(tensors + unpack_from(buffer, offset))
        return lambda tensors, buffer, offset: build((*tensors, *self._unpack(buffer, offset)))

    def _unpack(self, buffer: memoryview, offset: int = 0) -> list[Any]:
        """The leaves in the row at `offset` of `buffer`."""
        values = list(self._fixed.unpack_from(buffer, offset))
        offset += self._fixed.size
        for i, decode in self._variable:
            end = offset + values[i]
            if end > len(buffer):
                raise CacheError(f"a stored string of {values[i]:,} bytes runs past the end of the index")
            values[i] = decode(bytes(buffer[offset:end]))
            offset = end
        for i, dtype in self._numpy:
            values[i] = np.frombuffer(values[i], dtype)[0]
        return values

    def fits(self, leaves: bytes) -> bool:
        """Whether these bytes are one row of leaves, no more and no less."""
        try:
            values = self._unpack(memoryview(leaves))
        except (struct.error, CacheError, UnicodeDecodeError):
            return False
        lengths = zip(self._fixed.unpack_from(leaves), self._kinds)
        tail = sum(length for length, kind in lengths if kind in VARIABLE)
        return len(leaves) == self._fixed.size + tail and len(values) == len(self._kinds)

    def slot_at(self, *path: str) -> int | None:
        """The number of the tensor at this path of dict keys, if there is one that is stored as it is."""
        node: Any = self._root
        for key in path:
            if node[0] != "dict":
                return None
            node = next((value for name, value in node[1] if name == key), ["none"])
        is_whole = node[0] == "tensor" and all(padding.slot != node[1] for padding in self._paddings)
        return node[1] if is_whole else None

    def _compile(self, node: list, depth: int) -> Build:
        """A function that builds this node. The tree is walked once per layout, not once per sample."""
        if depth > MAX_DEPTH:
            raise CacheError(f"a stored layout nests deeper than {MAX_DEPTH} levels")
        kind = node[0]
        if kind == "tensor":
            return itemgetter(self._tensor(node[1]))
        if kind == "dict":
            return _dict([_read_key(key) for key, _ in node[1]], self._compile_all([v for _, v in node[1]], depth))
        if kind in ("list", "tuple"):
            return _list(self._compile_all(node[1], depth), tuple if kind == "tuple" else list)
        if kind == "none":
            return lambda values: None
        if kind == "codec":
            return _codec(str(node[1]), self._compile(node[2], depth + 1))
        return itemgetter(self._leaf(kind, node))

    def _compile_all(self, nodes: list, depth: int) -> list[Build]:
        return [self._compile(node, depth + 1) for node in nodes]

    def _tensor(self, slot: int) -> int:
        if type(slot) is not int or not 0 <= slot < len(self.specs):
            raise CacheError(f"a stored layout names tensor {slot!r} of {len(self.specs)}")
        return slot

    def _leaf(self, kind: str, node: list) -> int:
        """The position of a leaf among the values: after all tensors."""
        if kind == "numpy":
            kind = node[1]
        if kind not in FIXED and kind not in NUMPY_TYPES:
            raise CacheError(f"a stored layout has a node of unknown kind {kind!r}")
        self._kinds.append(kind)
        return len(self.specs) + len(self._kinds) - 1


def _dict(keys: list, parts: list[Build]) -> Build:
    pick = _pick(parts)
    # No `strict`, which costs a third of the call: both have the length of the node.
    if pick is not None:
        return lambda values: dict(zip(keys, pick(values)))
    return lambda values: dict(zip(keys, [part(values) for part in parts]))


def _list(parts: list[Build], kind: type) -> Build:
    pick = _pick(parts)
    if pick is not None:
        return lambda values: kind(pick(values))
    if kind is list and len(parts) == 1:
        (only,) = parts
        return lambda values: [only(values)]
    if kind is list and len(parts) == 2:
        first, second = parts
        return lambda values: [first(values), second(values)]
    return lambda values: kind([part(values) for part in parts])


def _pick(parts: list[Build]) -> itemgetter | None:
    """One call for several tensors and leaves, if there is nothing else among the parts."""
    if len(parts) < 2 or not all(isinstance(part, itemgetter) for part in parts):
        return None
    return itemgetter(*(part.__reduce__()[1][0] for part in parts))


def _codec(name: str, part: Build) -> Build:
    def build(values: tuple) -> Any:
        # Looked up on use: a dataset can be opened and copied without the package that registers the type.
        codec = codec_named(name)
        if codec is None:
            raise CacheError(f"the structure contains a {name!r}, but no codec of that name is registered")
        value = part(values)
        try:
            return codec.join(value)
        except Exception as error:  # stored data may differ from what the codec once split
            raise CacheError(f"a stored {name!r} cannot be rebuilt: {error!r}") from error

    return build


def _numpy_size(kind: str) -> int:
    return np.dtype(kind).itemsize


def _read_key(key: Any) -> str | int:
    if type(key) not in (str, int):
        raise CacheError(f"a stored layout has the dict key {key!r}")
    return key
