"""Whether datasets fit into one cache, and whether it may take the place of one that is there.

Samples of different models cannot be trained on together. A cache replaces only one that was made in the same way:
anything else would lose samples that may be nowhere else, such as those of an encoded dataset under the same name.

Shapes decide. Names and hashes of models do not: a checkpoint may contain the VAE that also has a file of its own, and
finetunes of one model fit together. If they differ, a warning names them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from ...errors import CacheError
from ..address import Address, is_same_place
from ..format import Storage, read_manifest, storage_at
from ..read import Dataset
from ..sources import few_names

FROM_LISTS = {"made by": "lists of latents and conditionings"}  # the provenance of a cache of such lists


def check_fit(datasets: Sequence[Dataset]) -> list[str]:
    """Refuse datasets that were made for different models. Returns what to know about those that may fit."""
    distinct = list({dataset.path: dataset for dataset in datasets}.values())
    shapes = [_Shapes(dataset, _forms(dataset), _widths(dataset)) for dataset in distinct]
    for first, second in combinations(shapes, 2):
        for what, one, other in _differences(first, second):
            raise CacheError(
                f"{first.dataset.path.name} and {second.dataset.path.name} do not fit together: {what} {one} and "
                f"{other}; merge datasets that were encoded for the same model"
            )
    return list(_doubts(distinct)) if len(distinct) > 1 else []


def recorded_encoders(dataset: Dataset) -> dict[str, Any]:
    """The encoders of a dataset, as another one records where its samples came from."""
    for run in _runs(dataset.provenance):
        kept = {name: run[name] for name in ("encoders", "encoder_names") if name in run}
        return {"provenance": {"encode": kept}}
    return {}


def recorded_text_encoders(dataset: Dataset) -> dict[str, str]:
    """The identities of the text encoders of a dataset and its parts, each with its name."""
    runs = list(_runs(dataset.provenance))
    found = {_text(run, "encoders", "text"): _text(run, "encoder_names", "text") for run in runs}
    return {identity: name for identity, name in found.items() if identity}


@dataclass(frozen=True)
class _Shapes:
    dataset: Dataset
    forms: set[tuple[int, int]]
    widths: dict[str, int]


def _differences(first: _Shapes, second: _Shapes) -> Iterator[tuple[str, str, str]]:
    """What differs, with the value of each."""
    if first.forms and second.forms and not first.forms & second.forms:
        yield "their latents have the shapes", _shown(first.dataset, first.forms), _shown(second.dataset, second.forms)
    if first.widths and second.widths:  # a dataset may have no conditioning at all
        for name in {**first.widths, **second.widths}:
            one, other = (_with_name(of.dataset, "text", of.widths.get(name, "missing")) for of in (first, second))
            if first.widths.get(name) != second.widths.get(name):
                yield f"the width of their {name} is", one, other


def _doubts(datasets: Sequence[Dataset]) -> Iterator[str]:
    """One sentence per doubt, however many datasets there are."""
    unknown = [dataset.path.name for dataset in datasets if not _encoder(dataset, "image")[0]]
    if unknown:
        yield f"{few_names(unknown)}: only shapes were compared, because the models are not recorded"
    for part, what in (
        ("image", "the latents come from different VAEs"),
        ("text", "the captions come from different encoders"),
    ):
        used = _users(datasets, part)
        if len(used) > 1:
            yield f"{what}: {few_names(used)}; train on them together only if these are versions of one model"


def _users(datasets: Sequence[Dataset], part: str) -> list[str]:
    """Each distinct encoder with the datasets that it encoded. Equal names are told apart by their identity."""
    users: dict[tuple[str, str], list[str]] = {}
    for dataset in datasets:
        identity, name = _encoder(dataset, part)
        if identity:
            known = next((key for key in users if key[0] == identity), (identity, name))
            users.setdefault(known, []).append(dataset.path.name)
    names = [name for _, name in users]
    return [
        f"{name if name and names.count(name) == 1 else f'{name} {identity[:12]}'.strip()} ({few_names(folders)})"
        for (identity, name), folders in users.items()
    ]


def _forms(dataset: Dataset) -> set[tuple[int, int]]:
    """Channels and number of axes of the latents."""
    return {(bucket.shape[0], len(bucket.shape)) for bucket in dataset.buckets() if bucket.shape}


def _shown(dataset: Dataset, forms: set[tuple[int, int]]) -> str:
    shapes = " or ".join(f"{channels} channels × {axes - 1} axes" for channels, axes in sorted(forms))
    return _with_name(dataset, "image", shapes)


def _with_name(dataset: Dataset, part: str, value: object) -> str:
    name = _encoder(dataset, part)[1]
    return f"{value} ({name})" if name else str(value)


def _widths(dataset: Dataset) -> dict[str, int]:
    """The widths of the first sample's conditioning. Its tensors are lazy: nothing is read."""
    if not len(dataset) or "conditioning" not in dataset.fields:
        return {}
    found: Any = dataset[0].fields.get("conditioning")
    try:
        tokens, extras = found[0]
    except (TypeError, ValueError, IndexError, KeyError):  # another structure, or none
        return {}
    pooled = extras.get("pooled_output") if isinstance(extras, dict) else None
    tensors = {"conditioning": tokens, "pooled output": pooled}
    return {name: int(t.shape[-1]) for name, t in tensors.items() if isinstance(t, torch.Tensor) and t.dim()}


def _encoder(dataset: Dataset, part: str) -> tuple[str, str]:
    """Identity and name of the VAE ("image") or text encoder ("text") of a dataset; empty if not recorded."""
    for run in _runs(dataset.provenance):
        identity = _text(run, "encoders", part)
        if identity:
            return identity, _text(run, "encoder_names", part)
    return "", ""


def _runs(provenance: Any) -> Iterator[Mapping[str, Any]]:
    """The records of encoding, of a merged dataset those of its parts."""
    if isinstance(provenance, Mapping):
        if isinstance(provenance.get("encode"), Mapping):
            yield provenance["encode"]
        for name in ("merged", "gathered"):
            for part in provenance.get(name, ()) if isinstance(provenance.get(name), list) else ():
                yield from _runs(part.get("provenance") if isinstance(part, Mapping) else None)


def _text(run: Mapping[str, Any], table: str, part: str) -> str:
    found = run.get(table)
    value = found.get(part) if isinstance(found, Mapping) else None
    return value if isinstance(value, str) else ""


def refuse_own_input(target: Storage, sources: Sequence[Path | Address]) -> None:
    """Refuse to write to a cache that is read: each further run would add its samples again, or drop more of them."""
    found = [source for source in sources if target.exists() and storage_at(source).exists()]
    if any(is_same_place(target.path, source) for source in found):  # also through links, and in another case
        raise CacheError(f"{target.path.name}: the samples come from this cache; choose another name for the result")


def refuse_other_origin(target: Storage, provenance: Mapping[str, Any]) -> None:
    """Refuse to replace a cache that was made in another way than one with this provenance."""
    manifest, origin = read_manifest(target), _origin(provenance)
    if manifest is not None and _origin(manifest.provenance) != origin:
        raise CacheError(f"{target.path.name}: exists and is not a {origin}; choose another name, or delete it first")


def _origin(provenance: Mapping[str, Any]) -> str:
    """The latest step counts: a copy of a merge is a copy.

    Older versions recorded merges of the node as `gathered`, like copies, but a copy has only one part.
    """
    gathered = provenance.get("gathered")
    if isinstance(gathered, list):
        return "merge" if len(gathered) > 1 else "copy"
    if "merged" in provenance:
        return "merge"
    if "imported" in provenance:
        return "dataset of another trainer"
    if "converted" in provenance:
        return "converted dataset"
    return "cache of lists" if FROM_LISTS.items() <= provenance.items() else ""
