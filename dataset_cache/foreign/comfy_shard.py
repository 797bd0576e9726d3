"""A shard of a training dataset written by ComfyUI's own nodes, read without running anything that it contains."""

import io
import os
import pickle
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...errors import CacheError

CORE = "ComfyUI"
SKELETON = "ComfyUI #14599"
# In older versions a crafted file can corrupt memory even with weights_only (CVE-2026-24747).
SAFE_TORCH = "2.10"
# Limits for one item (at most one bucket of the dataset). Pickled lists can contain each other many times, so a small
# file can describe an endless structure.
MAX_VALUES = 5_000_000
MAX_DEPTH = 64
# Per shard. A tensor with a stride of 0 repeats one stored value as often as its shape says, and views may overlap.
MAX_REPEATED_BYTES = 256 << 20
_TENSOR_MARK = "__tref__"
_ZIP_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True)
class Item:
    """One latent with its conditioning, as listed in the dataset. The latent may be a batch."""

    name: str
    latent: Any
    conditioning: Any


def read_shard(path: Path, kind: str) -> Iterator[Item]:
    """The items of a shard in order. Raises CacheError if it contains more than plain data."""
    return _READERS[kind](path)


def open_file(path: Path) -> Any:
    """Open a regular file for reading; anything else is refused."""
    try:
        # A pipe would block the process that opens it.
        file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    except OSError as error:
        raise CacheError(f"{path}: cannot be opened ({error.strerror}); copy the folder again") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CacheError(f"{path}: is not a file; remove it")
    return file


def _read_core_shard(path: Path) -> Iterator[Item]:
    shard = load_saved(path, str(path))
    latents, conditionings = (shard.get("latents"), shard.get("conditioning")) if isinstance(shard, dict) else (0, 0)
    if not isinstance(latents, list) or not isinstance(conditionings, list) or len(latents) != len(conditionings):
        raise CacheError(
            f"{path}: expected a dict with two lists of equal length, latents and conditioning; not written by ComfyUI"
        )
    repeated = Repeated(path.stat().st_size)
    for i, (latent, conditioning) in enumerate(zip(latents, conditionings, strict=True)):
        name = f"{path.name}#{i}"
        walk = Walk(f"{path}: sample {i}", repeated=repeated)
        yield Item(name, walk.copy(latent), walk.copy(conditioning))


def load_saved(source: Path | bytes, place: str) -> Any:
    """What `torch.save` wrote, if it is plain data and tensors. Nothing else in it is built or called.

    A file is mapped: its tensors stay in it until the writer copies them one by one.
    """
    if torch.__version__ < SAFE_TORCH:
        raise CacheError(
            f"{place}: is a pickle, which torch {torch.__version__} cannot load safely; "
            f"update torch to {SAFE_TORCH} or newer"
        )
    try:
        if isinstance(source, bytes):
            return torch.load(io.BytesIO(_unpacked(source, place)), map_location="cpu", weights_only=True)
        with open_file(source) as file:
            _check_magic(file.read(len(_ZIP_MAGIC)), place)
        return torch.load(source, map_location="cpu", weights_only=True, mmap=True)
    except CacheError:
        raise
    except pickle.UnpicklingError as error:
        raise CacheError(f"{place}: refused: contains more than plain data and tensors: {first_line(error)}") from error
    except Exception as error:  # A damaged archive makes torch raise errors without a common type.
        raise CacheError(f"{place}: cannot be read as a torch.save file: {first_line(error)}") from error


def _check_magic(start: bytes, place: str) -> None:
    if start != _ZIP_MAGIC:
        raise CacheError(f"{place}: not a torch.save file (no zip archive); copy it again, or save the dataset again")


def _unpacked(data: bytes, place: str) -> bytes:
    """The same archive, if nothing in it is compressed: torch.save never does, and a small file could become huge."""
    _check_magic(data[: len(_ZIP_MAGIC)], place)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    if any(member.compress_type for member in members) or sum(m.file_size for m in members) > len(data):
        raise CacheError(f"{place}: refused: its parts are compressed, which torch.save does not do")
    return data


def _read_skeleton_shard(path: Path) -> Iterator[Item]:
    skeletons = _load_skeletons(path.with_suffix(".skeleton.pkl"))
    try:
        with safe_open(path, framework="pt") as tensors:
            for i, (latent, conditioning) in enumerate(skeletons):
                walk = Walk(f"{path}: sample {i}", fetch=tensors.get_tensor)
                yield Item(f"{path.name}#{i}", walk.copy(latent), walk.copy(conditioning))
    except (SafetensorError, OSError) as error:
        raise CacheError(f"{path}: cannot be read as safetensors: {first_line(error)}") from error


def _load_skeletons(path: Path) -> list[tuple[Any, Any]]:
    try:
        with open_file(path) as file:
            skeletons = _PlainUnpickler(file, path).load()
    except CacheError:
        raise
    except Exception as error:  # Invalid pickles raise errors without a common type.
        raise CacheError(f"{path}: not a readable skeleton: {first_line(error)}; save the dataset again") from error
    if type(skeletons) is not list or not all(type(pair) is tuple and len(pair) == 2 for pair in skeletons):
        raise CacheError(f"{path}: expected a list of (latent, conditioning) pairs; another program wrote this file")
    return skeletons


# The Python implementation: a forged memo number is a dict key there; the C one allocates gigabytes for it.
class _PlainUnpickler(pickle._Unpickler):
    """Builds numbers, strings and containers only. Every class or function is refused, so nothing can be called."""

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        raise CacheError(
            f"{self._path}: refused: refers to {module}.{name}; only plain data is read, and nothing was run"
        )

    def get_extension(self, code: int) -> Any:
        raise CacheError(
            f"{self._path}: refused: refers to extension {code}; only plain data is read, and nothing was run"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise CacheError(f"{self._path}: refused: refers to the external object {pid!r}; only plain data is read")


class Repeated:
    """Limits how many bytes the tensors of a shard have beyond those that it stores. Equal views are stored once."""

    def __init__(self, stored: int) -> None:
        self._left = stored + MAX_REPEATED_BYTES
        self._seen: set[tuple[Any, ...]] = set()

    def add(self, tensor: torch.Tensor, place: str) -> None:
        if tensor.layout != torch.strided:
            return  # refused when it is stored
        view = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        if view in self._seen:
            return
        self._seen.add(view)
        self._left -= tensor.numel() * tensor.element_size()
        if self._left < 0:
            raise CacheError(
                f"{place}: a tensor of shape {tuple(tensor.shape)} repeats stored bytes, more than "
                f"{MAX_REPEATED_BYTES >> 20} MB in this shard; ComfyUI's nodes do not write such datasets"
            )


class Walk:
    """Copies the structure of one item, limits its size, and inserts tensors where a skeleton marks them."""

    def __init__(
        self, place: str, fetch: Callable[[str], torch.Tensor] | None = None, repeated: Repeated | None = None
    ) -> None:
        self._place = place
        self._fetch = cache(fetch) if fetch is not None else None  # a skeleton may name a tensor many times
        self._repeated = repeated  # for tensors in the structure; those of a skeleton have names
        self._left = MAX_VALUES
        self._done: dict[int, tuple[Any, int]] = {}  # by id: the copy and its number of values

    def copy(self, value: Any, depth: int = 0) -> Any:
        if not isinstance(value, dict | list | tuple):
            self._left -= 1
            if not isinstance(value, torch.Tensor):
                return value
            if self._repeated is not None:
                self._repeated.add(value, self._place)
            return value.detach() if value.requires_grad else value
        if id(value) in self._done:
            made, size = self._done[id(value)]
            self._left -= size
        else:
            before = self._left
            self._left -= 1
            made = self._copy_container(value, depth) if depth < MAX_DEPTH else None
            self._done[id(value)] = made, before - self._left
        if self._left < 0 or made is None:
            limits = f"{MAX_VALUES:,} values or {MAX_DEPTH} levels"
            raise CacheError(f"{self._place}: more than {limits}; ComfyUI's nodes do not write such datasets")
        return made

    def _copy_container(self, value: dict | list | tuple, depth: int) -> Any:
        if isinstance(value, dict):
            if self._fetch is not None and list(value) == [_TENSOR_MARK]:
                return self._tensor(value[_TENSOR_MARK], self._fetch)
            return {key: self.copy(item, depth + 1) for key, item in value.items()}
        kind = list if isinstance(value, list) else tuple  # torch.Size is a tuple
        return kind(self.copy(item, depth + 1) for item in value)

    def _tensor(self, key: Any, fetch: Callable[[str], torch.Tensor]) -> torch.Tensor:
        if not isinstance(key, str):
            raise CacheError(f"{self._place}: marks a tensor with {key!r}, expected a name")
        try:
            return fetch(key)
        except SafetensorError as error:
            raise CacheError(f"{self._place}: tensor {key!r} is missing from the shard: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


_READERS: dict[str, Callable[[Path], Iterator[Item]]] = {CORE: _read_core_shard, SKELETON: _read_skeleton_shard}
