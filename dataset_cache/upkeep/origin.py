"""How a cache was made, as its provenance says. A cache replaces only one that was made in the same way.

Anything else would lose samples that may be nowhere else, such as those of an encoded dataset under the same name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import CacheError
from ..address import Address, is_same_place
from ..format import Storage, read_manifest, storage_at

FROM_LISTS = {"made by": "lists of latents and conditionings"}  # the provenance of a cache of such lists


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
    if "converted" in provenance:
        return "converted dataset"
    return "cache of lists" if FROM_LISTS.items() <= provenance.items() else ""
