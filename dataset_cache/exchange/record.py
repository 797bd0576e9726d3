"""A sample as other tools see it: facts as JSON, and its tensors by name, from which the same sample can be made again.

The layout and the leaves of every entry (docs/format.md) are in the JSON, so any nested structure comes back exactly.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import CacheError
from ..format import NAMES, Layout, Split, blob_hash, tensor_bytes, untrim_split
from ..index import SampleFacts
from ..read import Dataset

_RESERVED = "__metadata__"  # of safetensors


# In a JSON: {"index": …, "source": …, "captions": […], …, "fields": {name: [Entry.facts(), …]}}
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """One entry of a sample: the key it is stored under, its parts, and a name for each of its tensors."""

    field: str
    key: bytes
    parts: Split
    names: tuple[str, ...]

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(zip(self.names, self.parts.tensors))

    def facts(self) -> dict[str, Any]:
        """Everything but the values of the tensors, as JSON."""
        hashes = [blob_hash(tensor_bytes(t), NAMES[t.dtype], tuple(t.shape)).hex() for t in self.parts.tensors]
        return {
            "key": self.key.hex(),
            "layout": json.loads(self.parts.layout),
            "leaves": base64.b64encode(self.parts.leaves).decode(),
            "tensors": list(self.names),
            "hashes": hashes,
        }


def read_entry(dataset: Dataset, key: bytes) -> Entry:
    """An entry with all its rows: other tools know nothing of trimmed padding."""
    field, parts = dataset.stored_entry(key)
    parts = untrim_split(parts)
    return Entry(field, key, parts, tensor_names(parts.layout))


@dataclass(frozen=True)
class Restored:
    """A sample as it was before it was exported."""

    facts: SampleFacts
    entries: dict[str, list[Entry]]


def restore(record: Record, tensors: Callable[[str, int], Mapping[str, torch.Tensor]]) -> Restored:
    """The sample of a record. `tensors(field, variant)` are those of one entry, by name."""
    try:
        entries = {
            name: [rebuild(name, facts, tensors(name, variant)) for variant, facts in enumerate(of_field)]
            for name, of_field in record["fields"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise CacheError(f"a sample's JSON is incomplete: {error!r}") from error
    return Restored(read_facts(record), entries)


def describe(dataset: Dataset, number: int, entries: Mapping[str, Sequence[Entry]]) -> dict[str, Any]:
    """The JSON of a sample with these entries by field."""
    sample = dataset.sample(number)
    return {
        "index": number,
        "source": sample.source,
        "captions": list(sample.captions),
        "original_size": list(sample.original_size),
        "crop": list(sample.crop),
        "repeats": sample.repeats,
        "weight": sample.weight,
        "set": sample.set,
        "fields": {name: [entry.facts() for entry in found] for name, found in entries.items()},
    }


def entries_of(dataset: Dataset, number: int) -> dict[str, list[Entry]]:
    keys = dataset.keys(number).items()
    return {name: [read_entry(dataset, key) for key in of_field] for name, of_field in keys}


def read_facts(record: Record) -> SampleFacts:
    """The facts of a sample from its JSON. The writer checks their values."""
    try:
        return SampleFacts(
            tuple(record["captions"]),
            record["source"],
            tuple(record["original_size"]),
            tuple(record["crop"]),
            record["repeats"],
            record["weight"],
            record["set"],
        )
    except (KeyError, TypeError) as error:
        raise CacheError(f"a sample's JSON is incomplete: {error!r}") from error


def rebuild(field: str, facts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Entry:
    """The entry that `facts` describe. Refused unless every tensor has the type, shape and hash that they state."""
    try:
        key, leaves = bytes.fromhex(facts["key"]), base64.b64decode(facts["leaves"], validate=True)
        layout_text = json.dumps(facts["layout"], separators=(",", ":"))
        names, hashes = tuple(facts["tensors"]), [bytes.fromhex(text) for text in facts["hashes"]]
        found = [tensors[name] for name in names]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CacheError(f"{field}: its description is damaged: {error!r}") from error
    layout = Layout(layout_text)
    specs = [(spec.dtype, spec.shape) for spec in layout.specs]
    if specs != [(NAMES.get(tensor.dtype, ""), tuple(tensor.shape)) for tensor in found] or len(hashes) != len(found):
        raise CacheError(f"{field}: its tensors are not those that its layout describes")
    for name, tensor, spec, digest in zip(names, found, specs, hashes):
        if blob_hash(tensor_bytes(tensor), *spec) != digest:
            raise CacheError(f"{field}: tensor {name!r} is damaged: its bytes do not match their hash")
    if not isinstance(field, str) or not field or len(key) != 16 or not layout.fits(leaves):
        raise CacheError(f"{field}: its numbers and texts are not those that its layout describes")
    slot = layout.slot_at("samples") if field == "latent" else None
    if slot is not None and layout.specs[slot].shape[:1] != (1,):
        raise CacheError(f"{field}: its shape is {layout.specs[slot].shape}, expected a single sample [1, …]")
    return Entry(field, key, Split(layout_text, leaves, found), names)


def tensor_names(layout: str) -> tuple[str, ...]:
    """A name for each tensor of a layout: its path, such as `samples` or `0.1.pooled_output`."""
    parsed = json.loads(layout)
    names: dict[int, str] = {}
    for path, slot in _slots(parsed["root"], ()):
        names.setdefault(slot, ".".join(path) or "tensor")
    taken: set[str] = set()
    for slot in range(len(parsed["tensors"])):
        if names[slot] in taken or names[slot] == _RESERVED or not names[slot].isprintable():
            names[slot] = f"~{slot}"
        taken.add(names[slot])
    return tuple(names[slot] for slot in range(len(parsed["tensors"])))


def _slots(node: list, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    kind = node[0]
    if kind == "tensor":
        yield path, node[1]
    elif kind == "dict":
        for key, value in node[1]:
            yield from _slots(value, (*path, str(key)))
    elif kind in ("list", "tuple"):
        for i, value in enumerate(node[1]):
            yield from _slots(value, (*path, str(i)))
    elif kind == "codec":
        yield from _slots(node[2], path)
