"""Files of other programs: safetensors, npz and torch.save files, read without running anything, within limits.

What a file states about itself is compared with its size before memory is used for it. Links are not followed.
"""

import json
import math
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, deserialize

from ...errors import CacheError
from ..format import dtype_named, is_link
from .comfy_shard import Repeated, Walk, first_line, load_saved, open_file

MAX_FILE_BYTES = 4 << 30  # of a file that is read as a whole: a sample, or the text of one
MAX_ARRAY_BYTES = 1 << 30  # of an array in an archive, which may be compressed
_MAX_MEMBERS = 1000
_MAX_HEADER = 1 << 20
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def refuse_link(path: Path) -> None:
    if is_link(path):
        raise CacheError(f"{path}: is a link, which is not followed; copy the file itself")


def read_whole(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a regular file. Refused if it is a link or larger than `limit`."""
    refuse_link(path)
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CacheError(f"{path}: is larger than {limit:,} bytes, the most for one sample")
    return data


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    return unpack_tensors(read_whole(path), str(path))


def unpack_tensors(data: bytes, place: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    try:
        tensors = {name: _tensor(info) for name, info in deserialize(data)}  # it checks header, ranges and sizes
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, RuntimeError) as error:
        raise CacheError(f"{place}: cannot be read as safetensors: {first_line(error)}") from error
    return tensors, header.get("__metadata__", {})


def _tensor(info: Mapping[str, Any]) -> torch.Tensor:
    """Of every type that torch has; safetensors' own loader lacks some."""
    shape = list(info["shape"])
    if info["dtype"] == "F4":  # listed by values, of which torch has two in each element
        shape[-1] //= 2
    tensor = torch.empty(shape, dtype=dtype_named(info["dtype"]))
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).copy_(torch.frombuffer(info["data"], dtype=torch.uint8))
    return tensor


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, without its tensors."""
    refuse_link(path)
    with open_file(path) as file:
        size = int.from_bytes(file.read(8), "little")
        text = file.read(size) if size <= _MAX_HEADER else b""
    try:
        found = json.loads(text).get("__metadata__", {})
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise CacheError(f"{path}: has no readable safetensors header") from error


class Npz:
    """The arrays of an `.npz` file, read one at a time. Arrays of objects, which are pickles, are refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_link(path)
        self._file = open_file(path)
        try:
            self._archive = zipfile.ZipFile(self._file)
            members = self._archive.infolist()
        except Exception as error:  # a damaged archive raises errors without a common type
            self._file.close()
            raise CacheError(f"{path}: cannot be read as npz: {first_line(error)}") from error
        if len(members) > _MAX_MEMBERS:
            self.close()
            raise CacheError(f"{path}: has {len(members):,} arrays; no cache of a sample has so many")
        self._members = {m.filename.removesuffix(".npy"): m for m in members if m.filename.endswith(".npy")}

    def __enter__(self) -> "Npz":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._archive.close()
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> torch.Tensor:
        """The array as a tensor of its own."""
        member = self._members[name]
        place = f"{self.path}: {name}"
        if member.file_size > MAX_ARRAY_BYTES:
            raise CacheError(f"{place}: unpacks to {member.file_size:,} bytes, at most {MAX_ARRAY_BYTES:,} are read")
        try:
            with self._archive.open(member) as file:
                return _read_array(file, member.file_size, place)
        except CacheError:
            raise
        except Exception as error:  # as above
            raise CacheError(f"{place}: cannot be read: {first_line(error)}") from error

    def numbers(self, name: str) -> tuple[int, ...]:
        """A short array of whole numbers; empty if it is missing."""
        if name not in self:
            return ()
        values = self[name].flatten()
        if len(values) > 16 or not bool(torch.isfinite(values.double()).all()):
            raise CacheError(f"{self.path}: {name} is not a few numbers")
        return tuple(int(value) for value in values)


def _read_array(file: Any, size: int, place: str) -> torch.Tensor:
    version = np.lib.format.read_magic(file)
    if version not in _NPY_HEADERS:
        raise CacheError(f"{place}: npy version {version}, expected 1.0 or 2.0")
    shape, fortran, dtype = _NPY_HEADERS[version](file)
    if dtype.hasobject or dtype.kind not in "biuf":
        raise CacheError(f"{place}: refused: an array of {dtype}; only numbers are read, and nothing was run")
    # Python's numbers: a product of gigantic axes must not wrap around.
    nbytes = math.prod(int(axis) for axis in shape) * dtype.itemsize
    if nbytes != size - file.tell():
        raise CacheError(f"{place}: its header states {shape} of {dtype}, which is not what follows")
    data = bytearray(file.read(nbytes))
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    return torch.from_numpy(np.ascontiguousarray(array.astype(dtype.newbyteorder("="))))


def read_pickled(data: bytes, place: str, check: Callable[[Any], bool]) -> Any:
    """What `torch.save` stored: plain data and tensors, which `check` accepts. Everything else is refused unrun."""
    copied = Walk(place, repeated=Repeated(len(data))).copy(load_saved(data, place))
    if not check(copied):
        raise CacheError(f"{place}: is not what this kind of cache contains; another program wrote it")
    return copied


def is_record(value: Any, needed: Collection[str]) -> bool:
    """Whether this is a dict of texts that has these keys."""
    return isinstance(value, dict) and all(isinstance(key, str) for key in value) and set(needed) <= set(value)
