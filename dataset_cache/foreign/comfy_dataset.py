"""A training dataset written by ComfyUI's own nodes: its format, its shards in order, and what metadata.json states.

Two formats are known: core's shards, which are torch.save files, and those of ComfyUI #14599, a pickled skeleton
next to a safetensors file. `docs/convert.md` describes them. At most one shard is in memory at a time.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import CacheError
from .comfy_shard import CORE, SKELETON, Item, open_file, read_shard

_MAX_METADATA = 16 << 20
_SHARD_NAME = re.compile(r"shard_(\d{4,9})\.(pkl|safetensors)")


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
            for item in read_shard(shard, self.kind):
                yield item
                found += 1
        if self.count is not None and found != self.count:
            raise CacheError(
                f"{self.path / 'metadata.json'}: states {self.count:,} samples, the shards contain {found:,}; "
                "save the dataset again with ComfyUI's Save Training Dataset"
            )


def is_comfyui_dataset(path: Path) -> bool:
    """Whether a folder contains shards of ComfyUI's own nodes."""
    return path.is_dir() and any(_list_shards(path).values())


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
    if not os.path.lexists(path):
        return {}
    try:
        with open_file(path) as file:
            metadata = json.loads(file.read(_MAX_METADATA))
    except CacheError:
        raise
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
