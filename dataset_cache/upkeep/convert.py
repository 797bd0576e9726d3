"""Converts training datasets written by ComfyUI's own nodes to a cache, without running anything they contain.

Two formats are known: core's shards, which are torch.save files, and those of ComfyUI #14599, a pickled skeleton next
to a safetensors file. `docs/convert.md` describes them. At most one shard is in memory at a time.
"""

import json
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import CacheError
from ..write import CacheWriter, split_rows
from .info import plural

CORE = "ComfyUI"
SKELETON = "ComfyUI #14599"
# In older versions a crafted file can corrupt memory even with weights_only (CVE-2026-24747).
SAFE_TORCH = "2.10"
# Limits for one item (at most one bucket of the dataset). Pickled lists can contain each other many times, so a small
# file can describe an endless structure.
MAX_VALUES = 5_000_000
MAX_DEPTH = 64
_SHARD_NAME = re.compile(r"shard_(\d{4,9})\.(pkl|safetensors)")
_TENSOR_MARK = "__tref__"
_ZIP_MAGIC = b"PK\x03\x04"
_REMEDY = "save the dataset again in ComfyUI"


@dataclass(frozen=True)
class Item:
    """One latent with its conditioning, as listed in the dataset. The latent may be a batch."""

    name: str
    latent: Any
    conditioning: Any


@dataclass(frozen=True)
class ForeignDataset:
    """A training dataset of ComfyUI. `count` is its stated number of items, `notes` list skipped files."""

    path: Path
    kind: str
    shards: tuple[Path, ...]
    count: int | None
    notes: tuple[str, ...]

    def items(self) -> Iterator[Item]:
        """The items in order, with one shard open at a time. A shard with more than plain data raises CacheError."""
        found = 0
        for shard in self.shards:
            for item in _READERS[self.kind](shard):
                yield item
                found += 1
        if self.count is not None and found != self.count:
            raise CacheError(
                f"{self.path / 'metadata.json'}: states {self.count:,} samples, the shards contain {found:,}; "
                "save the dataset again with ComfyUI's Save Training Dataset"
            )


@dataclass(frozen=True)
class ConvertReport:
    """The result of a conversion. `items` are latents as listed, `samples` the rows written: batches are split."""

    source: Path
    destination: Path
    kind: str
    shards: int
    items: int
    samples: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        counts = f"{plural(self.samples, 'sample')} from {plural(self.shards, 'shard')} ({self.kind})"
        text = f"Converted {counts} to {self.destination.name}"
        return "\n".join([text, *self.notes])


def convert(
    source: Path, destination: Path, *, progress: Callable[[int, int | None], None] | None = None
) -> ConvertReport:
    """Import the dataset in `source` into the cache `destination`, published once all of it has been read.

    `progress` is called with (items done, total or None) after each item. Nothing in the source is executed.
    """
    source, destination = Path(source), Path(destination)
    if source.resolve() == destination.resolve():
        raise CacheError(f"{source}: source and destination are the same folder; choose another destination")
    dataset = open_foreign(source)
    items = samples = 0
    with CacheWriter(destination, provenance=_describe(dataset)) as writer:
        for item in dataset.items():
            place = str(source / item.name)
            for latent, conditioning, row in split_rows(item.latent, item.conditioning, place, _REMEDY):
                writer.add(latent=latent, conditioning=conditioning, source=f"{item.name}{row}")
                samples += 1
            items += 1
            if progress is not None:
                progress(items, dataset.count)
        if not samples:
            raise CacheError(
                f"{source}: contains no samples; save the dataset again with ComfyUI's Save Training Dataset"
            )
    return ConvertReport(source, destination, dataset.kind, len(dataset.shards), items, samples, dataset.notes)


def open_foreign(path: Path) -> ForeignDataset:
    """Detect the format of the dataset in `path` from its file names and metadata.json."""
    if not path.is_dir():
        raise CacheError(f"{path}: no such folder; choose a folder written by ComfyUI's Save Training Dataset")
    metadata = _read_metadata(path / "metadata.json")
    shards = _list_shards(path)
    kind = _detect_kind(path, metadata, shards)
    files, notes = _select_shards(path, shards[kind], metadata.get("num_shards"))
    return ForeignDataset(path, kind, files, metadata.get("num_samples"), notes)


def _read_metadata(path: Path) -> dict[str, int]:
    """The counts in metadata.json; empty if the file is missing, which ComfyUI's own loader accepts too."""
    try:
        metadata = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CacheError(f"{path}: cannot be read ({error}); remove it to import every shard of the folder") from error
    if not isinstance(metadata, dict):
        raise CacheError(
            f"{path}: contains a {type(metadata).__name__}, expected an object; another program wrote this folder"
        )
    counts = {key: metadata[key] for key in ("num_samples", "num_shards", "format_version") if key in metadata}
    for key, value in counts.items():
        if type(value) is not int or value < 0:
            raise CacheError(
                f"{path}: {key} is {value!r}, expected a count; remove the file to import every shard of the folder"
            )
    return counts


def _list_shards(path: Path) -> dict[str, dict[int, Path]]:
    """The shard files of both formats by number. (ComfyUI sorts them by name, which fails from 10,000 on.)"""
    shards: dict[str, dict[int, Path]] = {CORE: {}, SKELETON: {}}
    for file in path.iterdir():
        match = _SHARD_NAME.fullmatch(file.name)
        if match and file.is_file():
            shards[CORE if match[2] == "pkl" else SKELETON][int(match[1])] = file
    return shards


def _detect_kind(path: Path, metadata: dict[str, int], shards: dict[str, dict[int, Path]]) -> str:
    version = metadata.get("format_version")
    if version not in (None, 2):
        raise CacheError(
            f"{path / 'metadata.json'}: format_version {version}, expected none or 2; a newer streamcache may read it"
        )
    if version == 2:
        kind = SKELETON
    elif metadata:
        kind = CORE
    else:
        present = [name for name, files in shards.items() if files]
        if len(present) == 2:
            raise CacheError(
                f"{path}: contains shards of both formats (.pkl and .safetensors) but no metadata.json that "
                "selects one; move the files of one format away"
            )
        kind = present[0] if present else CORE
    if not shards[kind]:
        raise CacheError(
            f"{path}: no shard_0000.pkl (ComfyUI) or shard_0000.safetensors (#14599) in it; "
            "choose a folder written by ComfyUI's Save Training Dataset"
        )
    return kind


def _select_shards(
    path: Path, found: dict[int, Path], expected: int | None
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    notes = []
    if expected is None:
        expected = max(found) + 1
        notes.append("metadata.json does not state the number of shards: all shards in the folder were used")
    missing = next((i for i in range(expected) if i not in found), None)
    if missing is not None:
        raise CacheError(
            f"{path}: shard {missing} of {expected} is missing; copy the folder again, "
            "or save the dataset again with ComfyUI's Save Training Dataset"
        )
    notes += [f"{found[i].name} skipped: left by an earlier, longer save" for i in sorted(found) if i >= expected]
    return tuple(found[i] for i in range(expected)), tuple(notes)


def _read_core_shard(path: Path) -> Iterator[Item]:
    shard = _load_torch_file(path)
    latents, conditionings = (shard.get("latents"), shard.get("conditioning")) if isinstance(shard, dict) else (0, 0)
    if not isinstance(latents, list) or not isinstance(conditionings, list) or len(latents) != len(conditionings):
        raise CacheError(
            f"{path}: expected a dict with two lists of equal length, latents and conditioning; not written by ComfyUI"
        )
    for i, (latent, conditioning) in enumerate(zip(latents, conditionings, strict=True)):
        name = f"{path.name}#{i}"
        walk = _Walk(f"{path}: sample {i}")
        yield Item(name, walk.copy(latent), walk.copy(conditioning))


def _load_torch_file(path: Path) -> Any:
    if torch.__version__ < SAFE_TORCH:
        raise CacheError(
            f"{path}: is a pickle, which torch {torch.__version__} cannot load safely; "
            f"update torch to {SAFE_TORCH} or newer"
        )
    with _opened(path) as file:
        magic = file.read(len(_ZIP_MAGIC))
    if magic != _ZIP_MAGIC:
        raise CacheError(f"{path}: not a torch.save file (no zip archive); copy it again, or save the dataset again")
    try:
        # Mapped: tensors stay in the file until the writer copies them one by one.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CacheError(f"{path}: refused: contains more than plain data and tensors: {_first_line(error)}") from error
    except Exception as error:  # A damaged archive makes torch raise errors without a common type.
        raise CacheError(f"{path}: cannot be read as a torch.save file: {_first_line(error)}") from error


def _read_skeleton_shard(path: Path) -> Iterator[Item]:
    skeletons = _load_skeletons(path.with_suffix(".skeleton.pkl"))
    try:
        with safe_open(path, framework="pt") as tensors:
            for i, (latent, conditioning) in enumerate(skeletons):
                walk = _Walk(f"{path}: sample {i}", tensors.get_tensor)
                yield Item(f"{path.name}#{i}", walk.copy(latent), walk.copy(conditioning))
    except (SafetensorError, OSError) as error:
        raise CacheError(f"{path}: cannot be read as safetensors: {_first_line(error)}") from error


def _load_skeletons(path: Path) -> list[tuple[Any, Any]]:
    try:
        with _opened(path) as file:
            skeletons = _PlainUnpickler(file).load()
    except CacheError:
        raise
    except Exception as error:  # Invalid pickles raise errors without a common type.
        raise CacheError(f"{path}: not a readable skeleton: {_first_line(error)}; save the dataset again") from error
    if type(skeletons) is not list or not all(type(pair) is tuple and len(pair) == 2 for pair in skeletons):
        raise CacheError(f"{path}: expected a list of (latent, conditioning) pairs; another program wrote this file")
    return skeletons


# The Python implementation: a forged memo number is a dict key there; the C one allocates gigabytes for it.
class _PlainUnpickler(pickle._Unpickler):
    """Builds numbers, strings and containers only. Every class or function is refused, so nothing can be called."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._path = file.name

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


class _Walk:
    """Copies the structure of one item, limits its size, and inserts tensors where a skeleton marks them."""

    def __init__(self, place: str, fetch: Callable[[str], torch.Tensor] | None = None) -> None:
        self._place = place
        self._fetch = fetch
        self._left = MAX_VALUES
        self._done: dict[int, tuple[Any, int]] = {}  # by id: the copy and its number of values

    def copy(self, value: Any, depth: int = 0) -> Any:
        if not isinstance(value, dict | list | tuple):
            self._left -= 1
            return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value
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
            raise CacheError(
                f"{self._place}: tensor {key!r} is missing from the shard: {_first_line(error)}"
            ) from error


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise CacheError(f"{path}: cannot be opened ({error.strerror}); copy the folder again") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _describe(dataset: ForeignDataset) -> dict[str, Any]:
    return {"converted": {"format": dataset.kind, "folder": dataset.path.name, "shards": len(dataset.shards)}}


_READERS: dict[str, Callable[[Path], Iterator[Item]]] = {CORE: _read_core_shard, SKELETON: _read_skeleton_shard}
