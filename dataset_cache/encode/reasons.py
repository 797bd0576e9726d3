"""Reasons: why an entry is encoded again, why a file is left out, and what was noticed beside."""

from __future__ import annotations

from ..format import DAMAGED
from ..sources import Origin

NEW = "new"
CONTENT_CHANGED = "content changed"
TRANSFORM_CHANGED = "transform changed"
ENCODER_CHANGED = "encoder changed"
MISSING_FIELD = "missing field"
NOT_IN_CACHE = "not in this cache"  # known from an earlier run whose entry was cleaned away, or never made durable
WHY = (NEW, CONTENT_CHANGED, TRANSFORM_CHANGED, ENCODER_CHANGED, MISSING_FIELD, DAMAGED, NOT_IN_CACHE)


def why_encoded(now: Origin, before: Origin | None) -> str:
    """Why an entry of a known source is made: `before` is what its entry of this field was made of last time."""
    if before is None:
        return MISSING_FIELD
    if before.content != now.content:
        return CONTENT_CHANGED
    if before.encoder != now.encoder:
        return ENCODER_CHANGED
    return TRANSFORM_CHANGED if before.transform != now.transform else NOT_IN_CACHE
