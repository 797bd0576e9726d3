"""What an export says about the dataset as a whole: `export.json`, written last, and `named.safetensors` beside it.

A folder without `export.json` is an unfinished export.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save

from ...errors import CacheError
from ..foreign import read_tensors, read_whole
from ..format import PADDING, replace_file
from ..read import Cache
from .record import Entry, read_entry, rebuild

ABOUT, NAMED = "export.json", "named.safetensors"
VERSION = 1
_MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class About:
    """The dataset that was exported. `files` are the names of the files with its samples, in order.

    `trimmed`: it stored conditionings trimmed, and so will the cache that is made of the export.
    """

    format: str
    samples: int
    files: tuple[str, ...]
    fields: tuple[str, ...]
    trimmed: bool = False
    sets: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, Any] = field(default_factory=dict)  # entries by name, without the values of their tensors


def write_about(folder: Path, dataset: Cache, form: str, files: Sequence[str]) -> None:
    """Finish the export in `folder`."""
    named = {name: read_entry(dataset, key) for name, key in dataset.named.items()}
    tensors = {
        f"{number}.{tensor_name}": tensor
        for number, entry in enumerate(named.values())
        for tensor_name, tensor in entry.tensors().items()
    }
    if named:
        replace_file(folder / NAMED, save(tensors))
    facts = {name: {"field": entry.field, **entry.facts()} for name, entry in named.items()}
    fields, trimmed = dataset.fields, PADDING in dataset.manifest.requires
    about = About(form, len(dataset), tuple(files), fields, trimmed, dataset.sets, dataset.provenance, facts)
    text = json.dumps({"streamcache": VERSION, **asdict(about)}, indent=1)
    replace_file(folder / ABOUT, text.encode())


def is_export(folder: Path) -> bool:
    return (folder / ABOUT).is_file()


def read_about(folder: Path) -> About:
    """Refuses names of files that lead elsewhere, and values that make no sense."""
    place = folder / ABOUT
    try:
        data = json.loads(read_whole(place, _MAX_BYTES))
        version = data.pop("streamcache")
        about = About(**data)
        files, fields = tuple(about.files), tuple(about.fields)
        texts = all(isinstance(name, str) for name in (*files, *fields, about.format))
        parts = (about.sets, about.provenance, about.named, *about.sets.values(), *about.named.values())
        plain = all(isinstance(part, dict) for part in parts)
    except CacheError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CacheError(f"{place}: cannot be read ({error!r}); export the cache again") from error
    if version != VERSION:
        raise CacheError(f"{place}: was written by another version of streamcache; update it")
    if not texts or not plain or type(about.trimmed) is not bool or type(about.samples) is not int or about.samples < 0:
        raise CacheError(f"{place}: its values have the wrong types; export the cache again")
    for name in files:
        if "\\" in name or ":" in name or "\0" in name or {"", ".", ".."} & set(name.split("/")):
            raise CacheError(f"{place}: names the file {name!r}, which is not in this folder")
    return replace(about, files=files, fields=fields)


def read_named(folder: Path, about: About) -> dict[str, Entry]:
    """The entries with a name in the dataset, such as the empty caption."""
    if not about.named:
        return {}
    tensors, _ = read_tensors(folder / NAMED)
    entries = {}
    for number, (name, facts) in enumerate(about.named.items()):
        try:
            own = {one: tensors[f"{number}.{one}"] for one in facts["tensors"]}
            entries[name] = rebuild(facts["field"], facts, own)
        except (KeyError, TypeError) as error:
            raise CacheError(f"{folder / NAMED}: {name!r} is missing or damaged: {error!r}") from error
    return entries
