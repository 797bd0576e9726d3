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
from .lazy import LazyTensor
from .padding import read_paddings, restore, saved_bytes
from .tensors import MAX_AXES, NAMES, codec_for, codec_named, read_spec

MAX_DEPTH = 64
# The format of each kind of leaf in the fixed part of a row; variable ones store their length there.
_FIXED = {"int": "q", "float": "d", "bool": "?", "bigint": "I", "str": "I", "bytes": "I"}
_VARIABLE = {
    "bigint": lambda data: int.from_bytes(data, "little", signed=True),
    "str": lambda data: data.decode("utf-8", "surrogatepass"),
    "bytes": lambda data: data,
}
_MAX_KEY_BITS = 8192  # JSON readers refuse numbers with thousands of digits
_NUMPY_TYPES = {"|b1", "|i1", "|u1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"}

_LEAVES = {bool, int, float, str, bytes}

Build = Callable[[tuple], Any]  # from the tensors and leaves of a value to the value
Place = str | tuple  # a path in a structure: (path of its owner, last step); joined for error messages


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
    splitter = _Splitter()
    node = splitter.node(structure, place, 0)
    return Split(_layout_text(specs_of(splitter.tensors), node), splitter.pack(), splitter.tensors)


def specs_of(tensors: list[torch.Tensor]) -> tuple:
    return tuple([(NAMES[tensor.dtype], tuple(tensor.shape)) for tensor in tensors])


def layout_text(specs: tuple, root: Any, padded: tuple = ()) -> str:
    """The layout as JSON."""
    parts = {"tensors": specs, "padded": padded, "root": root} if padded else {"tensors": specs, "root": root}
    return json.dumps(parts, separators=(",", ":"))


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
        self._fixed = struct.Struct("<" + "".join(_FIXED.get(kind) or f"{_numpy_size(kind)}s" for kind in self._kinds))
        self._variable = [(i, _VARIABLE[kind]) for i, kind in enumerate(self._kinds) if kind in _VARIABLE]
        self._numpy = [(i, np.dtype(kind)) for i, kind in enumerate(self._kinds) if kind in _NUMPY_TYPES]
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
        tail = sum(length for length, kind in lengths if kind in _VARIABLE)
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
        if kind not in _FIXED and kind not in _NUMPY_TYPES:
            raise CacheError(f"a stored layout has a node of unknown kind {kind!r}")
        self._kinds.append(kind)
        return len(self.specs) + len(self._kinds) - 1


class _Inside(str):
    """The name of a codec in a path: the next steps are inside the value that it split."""


class _Splitter:
    """Walks one structure and collects its tensors and leaves."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._slots: dict[int, int] = {}
        self._codes: list[str] = []
        self._fixed: list[Any] = []
        self._tail: list[bytes] = []

    def pack(self) -> bytes:
        return struct.pack("<" + "".join(self._codes), *self._fixed) + b"".join(self._tail)

    def node(self, value: Any, place: Place, depth: int) -> tuple:
        if depth > MAX_DEPTH:
            raise CacheError(f"{_text(place)}: nested deeper than {MAX_DEPTH} levels (or it contains itself)")
        kind = type(value)
        if kind in _LEAVES:
            return self._leaf(value, kind)
        if kind is dict:
            return "dict", tuple([self._item(k, v, place, depth) for k, v in value.items()])
        if kind is list or kind is tuple:
            return kind.__name__, tuple([self.node(v, (place, i), depth + 1) for i, v in enumerate(value)])
        if value is None:
            return ("none",)
        if isinstance(value, torch.Tensor):
            return "tensor", self._slot(value, place)
        if isinstance(value, np.generic):
            return self._numpy(value, place)
        return self._codec(value, place, depth)

    def _item(self, key: Any, value: Any, place: Place, depth: int) -> tuple:
        if type(key) not in (str, int):
            raise CacheError(
                f"{_text(place)}: a dict key of type {_type_name(key)}; only str and int keys can be stored"
            )
        if type(key) is int and key.bit_length() > _MAX_KEY_BITS:
            raise CacheError(
                f"{_text(place)}: a dict key of {key.bit_length():,} bits; at most {_MAX_KEY_BITS:,} can be stored"
            )
        return key, self.node(value, (place, key), depth + 1)

    def _slot(self, tensor: torch.Tensor, place: Place) -> int:
        slot = self._slots.get(id(tensor))
        if slot is None:
            _check_tensor(tensor, place)
            slot = self._slots[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return slot

    def _leaf(self, value: Any, kind: type) -> tuple:
        if kind is bool:
            return self._put("bool", value)
        if kind is int:
            if -(1 << 63) <= value < 1 << 63:
                return self._put("int", value)
            return self._put("bigint", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if kind is float:
            return self._put("float", value)
        if kind is str:
            return self._put("str", value.encode("utf-8", "surrogatepass"))
        return self._put("bytes", value)

    def _put(self, kind: str, value: Any) -> tuple:
        self._codes.append(_FIXED[kind])
        if kind in _VARIABLE:
            self._tail.append(value)
            value = len(value)
        self._fixed.append(value)
        return (kind,)

    def _numpy(self, value: np.generic, place: Place) -> tuple:
        dtype = value.dtype.newbyteorder("<")
        if dtype.str not in _NUMPY_TYPES:
            raise _refusal(value, place)
        self._codes.append(f"{dtype.itemsize}s")
        self._fixed.append(value.astype(dtype).tobytes())
        return "numpy", dtype.str

    def _codec(self, value: Any, place: Place, depth: int) -> tuple:
        codec = codec_for(value)
        if codec is None:
            raise _refusal(value, place)
        return "codec", codec.name, self.node(codec.split(value), (place, _Inside(codec.name)), depth + 1)


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


def _check_tensor(tensor: torch.Tensor, place: Place) -> None:
    if type(tensor) is not torch.Tensor and not isinstance(tensor, LazyTensor):
        raise _refusal(tensor, place)
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise CacheError(
            f"{_text(place)}: only plain tensors with values can be stored, this one is {tensor.layout} of "
            f"{tensor.dtype} on {tensor.device}"
        )
    if tensor.dim() > MAX_AXES:
        raise CacheError(f"{_text(place)}: a tensor of {tensor.dim()} axes cannot be stored; the maximum is {MAX_AXES}")
    if tensor.dtype not in NAMES:
        raise CacheError(f"{_text(place)}: tensors of {tensor.dtype} cannot be stored; convert them first")


def _refusal(value: Any, place: Place) -> CacheError:
    return CacheError(
        f"{_text(place)}: a value of type {_type_name(value)} cannot be stored; remove it, or register a codec for it"
    )


def _text(place: Place) -> str:
    if isinstance(place, str):
        return place
    owner, step = place
    return f"{_text(owner)}<{step}>" if isinstance(step, _Inside) else f"{_text(owner)}[{step!r}]"


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _read_key(key: Any) -> str | int:
    if type(key) not in (str, int):
        raise CacheError(f"a stored layout has the dict key {key!r}")
    return key
