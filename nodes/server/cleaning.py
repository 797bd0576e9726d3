"""Cleaning on a page: what could go is counted and shown first; then exactly that is removed, or nothing."""

from dataclasses import astuple, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...dataset_cache import CATEGORIES, CacheBusy, CacheError, CleanPlan, Removal, clean, preview_clean
from ..library import forget_result
from .moves import let_go
from .refusals import Refused

_FILES = 50


def preview(folder: Path) -> dict[str, Any]:
    """What every category holds now, under a token that stands for it."""
    let_go(folder)
    plan = preview_clean(folder)
    return {"plan": _token(plan), **_describe(plan)}


def carry_out(folder: Path, token: str, categories: list[str]) -> dict[str, Any]:
    """Remove these categories of the plan that was shown."""
    unknown = [name for name in categories if name not in CATEGORIES]
    if unknown or not categories:
        raise Refused(f"categories: some of {', '.join(CATEGORIES)} are expected")
    let_go(folder)
    plan = preview_clean(folder)
    if _token(plan) != token:
        raise Refused(f"{folder.name} has changed since it was looked at; look at it again", 409)
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
    # Who holds something is no part of it: that decides whether it can be removed, not what.
    facts = [plan.generation, *(astuple(replace(removal, held_by=())) for removal in plan.removals)]
    return blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _describe(plan: CleanPlan) -> dict[str, Any]:
    return {"bytes": plan.bytes, "removals": [_removal(removal) for removal in plan.removals]}


def _removal(removal: Removal) -> dict[str, Any]:
    return {
        "category": removal.category,
        "words": CATEGORIES[removal.category],
        "count": removal.count,
        "bytes": removal.bytes,
        "kept": removal.kept,
        "held_by": list(removal.held_by[:_FILES]),
        "files": list(removal.files[:_FILES]),
        "file_count": len(removal.files),
    }
