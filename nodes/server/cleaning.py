"""Cleaning a cache from a page: show what can be removed, then remove exactly that, or nothing."""

from dataclasses import astuple, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...dataset_cache import CATEGORIES, CacheBusy, CacheError, CleanPlan, Removal, clean, preview_clean
from ..library import forget_result
from ..outside import Refused
from .moves import close_unused

_MAX_FILES = 50


def clean_preview(folder: Path) -> dict[str, Any]:
    """What each category contains now, with a token that identifies this state."""
    close_unused(folder)
    plan = preview_clean(folder)
    return {"plan": _token(plan), **_describe(plan)}


def clean_as_shown(folder: Path, token: str, categories: list[str]) -> dict[str, Any]:
    """Remove these categories of the plan that was shown; refuse if the cache has changed since."""
    unknown = [name for name in categories if name not in CATEGORIES]
    if unknown or not categories:
        raise Refused(f"categories: expected some of {', '.join(CATEGORIES)}")
    close_unused(folder)
    plan = preview_clean(folder)
    if _token(plan) != token:
        raise Refused(f"{folder.name} has changed since; refresh the page and choose again", 409)
    chosen = replace(plan, removals=tuple(each for each in plan.removals if each.category in categories))
    try:
        done = clean(chosen)
    except CacheBusy:
        raise
    except CacheError as error:
        raise Refused(str(error), 409) from error
    forget_result(folder)
    return _describe(done)


def _token(plan: CleanPlan) -> str:
    # Without the readers: they decide whether files can be removed, not which ones.
    facts = [plan.generation, *(astuple(replace(removal, held_by=())) for removal in plan.removals)]
    return blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _describe(plan: CleanPlan) -> dict[str, Any]:
    return {"bytes": plan.bytes, "removals": [_removal(removal) for removal in plan.removals]}


def _removal(removal: Removal) -> dict[str, Any]:
    return {
        "category": removal.category,
        "words": CATEGORIES[removal.category].text,
        "count": removal.count,
        "bytes": removal.bytes,
        "kept": removal.kept,
        "held_by": list(removal.held_by[:_MAX_FILES]),
        "files": list(removal.files[:_MAX_FILES]),
        "file_count": len(removal.files),
    }
