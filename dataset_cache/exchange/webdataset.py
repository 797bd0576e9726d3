"""Tar shards as the package `webdataset` reads them: for each sample `<key>.json` and a safetensors file per entry.

    00000007.json                       facts, captions, and the layout of each entry
    00000007.latent.safetensors         the first latent; further variants are 00000007.latent.1.safetensors, …
    00000007.conditioning.safetensors

Shards are limited in size. One sample is in memory at a time, in both directions.
"""

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from ...errors import CacheError
from ..foreign import MAX_FILE_BYTES, refuse_link, unpack_tensors
from ..read import Dataset
from .about import About
from .record import Entry, Restored, describe, entries_of, restore

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_PIECE = 1 << 20
_MOST_HEADER = 1 << 20  # that tarfile reads at once, as for a long name


def write_shards(dataset: Dataset, folder: Path, file_bytes: int, progress: Callable[[int, int], None]) -> list[str]:
    """Write all samples. Returns the names of the files."""
    files: list[str] = []
    with ExitStack() as stack:
        tar: tarfile.TarFile | None = None
        for number in range(len(dataset)):
            if tar is None or tar.offset >= file_bytes:
                stack.close()  # the full one
                files.append(f"shard-{len(files):06d}.tar")
                tar = stack.enter_context(tarfile.open(folder / files[-1], "x"))
            for name, data in _members(dataset, number):
                member = tarfile.TarInfo(f"{number:08d}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            _forget(tar)
            progress(number + 1, len(dataset))
    return files


def read_shards(folder: Path, about: About) -> Iterator[Restored]:
    """The samples of all shards, in order."""
    for name in about.files:
        refuse_link(folder / name)
        try:
            with open(folder / name, "rb") as file, tarfile.open(fileobj=_Limited(file), mode="r:") as tar:
                yield from _samples(tar, str(folder / name))
        except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError) as error:
            if isinstance(error, CacheError):
                raise
            raise CacheError(f"{folder / name}: cannot be read as tar: {error}") from error


def _members(dataset: Dataset, number: int) -> Iterator[tuple[str, bytes]]:
    entries = entries_of(dataset, number)
    yield "json", json.dumps(describe(dataset, number, entries)).encode()
    for position, (name, variants) in enumerate(entries.items()):
        for variant, entry in enumerate(variants):
            yield _suffix(name, position, variant), _pack(entry)


def _pack(entry: Entry) -> bytes:
    return save({name: tensor.contiguous() for name, tensor in entry.tensors().items()})


def _suffix(field: str, position: int, variant: int) -> str:
    shown = field if _PLAIN.fullmatch(field) and field != "json" else f"field{position}"
    return f"{shown}.{variant}.safetensors" if variant else f"{shown}.safetensors"


def _samples(tar: tarfile.TarFile, place: str) -> Iterator[Restored]:
    key, found, size = "", {}, 0
    for member in tar:
        _forget(tar)
        if not member.isreg() or member.issparse() or "/" in member.name or "\\" in member.name:
            raise CacheError(f"{place}: {member.name!r} is not a plain file of a sample")
        own, _, suffix = member.name.partition(".")
        if own != key and found:
            yield _restored(found, f"{place}: {key}")
            found, size = {}, 0
        key, size = own, size + member.size
        if size > MAX_FILE_BYTES:
            raise CacheError(f"{place}: {key} is larger than {MAX_FILE_BYTES:,} bytes, the most for one sample")
        found[suffix] = _read(tar, member)
    if found:
        yield _restored(found, f"{place}: {key}")


def _forget(tar: tarfile.TarFile) -> None:
    """Drop the headers that were read or written: they would be kept until the end."""
    tar.members.clear()  # pyright: ignore[reportAttributeAccessIssue]  missing in the stub


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    pieces = [] if file is None else list(iter(lambda: file.read(_PIECE), b""))
    return b"".join(pieces)


def _restored(found: Mapping[str, bytes], place: str) -> Restored:
    try:
        record: Any = json.loads(found["json"])
        positions = {name: number for number, name in enumerate(record["fields"])}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CacheError(f"{place}: has no readable json: {error!r}") from error

    def tensors(field: str, variant: int) -> Mapping[str, torch.Tensor]:
        suffix = _suffix(field, positions[field], variant)
        if suffix not in found:
            raise CacheError(f"{place}: {suffix} is missing")
        return unpack_tensors(found[suffix], f"{place}.{suffix}")[0]

    try:
        return restore(record, tensors)
    except CacheError as error:
        raise error if str(error).startswith(place) else CacheError(f"{place}: {error}") from error


class _Limited(io.RawIOBase):
    """A file of which no more is read at once than a piece: a header may state any length for what follows it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes, which no export has")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True
