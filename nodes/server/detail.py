"""Detail: everything a page shows of one cache beside its samples."""

from dataclasses import asdict
from typing import Any

from ...dataset_cache import Overview, Usage, usage_of
from .cache_list import CacheRow
from .untrusted import as_dict, as_list, cut, cut_text
from .views import View

_LISTED = 200


def cache_detail(row: CacheRow, view: View) -> dict[str, Any]:
    facts = view.overview
    disk = usage_of(view.current, row.readers, row.writer)
    return {
        "row": row.to_json(),
        "fields": [_field(field, disk) for field in facts.fields[:_LISTED]],
        "parts": _parts(disk),
        "missing": list(disk.missing[:_LISTED]),
        "shared": facts.shared,
        "saved_bytes": max(0, facts.bytes_unshared - facts.blob_bytes),
        "captions": _captions(facts),
        "sets": [
            {"name": cut_text(name), "samples": facts.set_samples[name], "facts": cut(known)}
            for name, known in list(facts.sets.items())[:_LISTED]
        ],
        "excluded": _excluded(facts.provenance),
        "provenance": cut(facts.provenance),
    }


def _field(field: Any, disk: Usage) -> dict[str, Any]:
    known = asdict(field)
    return {**known, "bytes": disk.fields.get(field.name, 0), "bytes_unshared": known["bytes"]}


def _parts(disk: Usage) -> dict[str, Any]:
    """Bytes by what they are for; older generations, unfinished builds and debris are of whole files."""
    parts = {name: getattr(disk, name) for name in ("index", "unused", "older", "building", "debris")}
    return {"fields": cut(disk.fields), **parts, "older_generations": disk.older_generations}


def _captions(facts: Overview) -> dict[str, Any]:
    return {
        "total": facts.captions,
        "distinct": facts.captions_distinct,
        "empty": facts.captions_empty,
        "common": [[cut_text(text), count] for text, count in facts.captions_common],
    }


def _excluded(provenance: dict[str, Any]) -> dict[str, Any]:
    found = as_dict(as_dict(provenance.get("encode")).get("excluded"))
    files = [as_dict(each) for each in as_list(found.get("files"))[:_LISTED]]
    count = found.get("count")
    return {
        "count": count if type(count) is int else len(files),
        "files": [{name: cut_text(str(each.get(name, ""))) for name in ("source", "reason")} for each in files],
    }
