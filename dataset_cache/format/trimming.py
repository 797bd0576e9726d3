"""An entry in parts, whole ⇄ trimmed. The two have the same leaves and restore to the same value."""

import json

from ...errors import CacheError
from .padding import Trimmer
from .skeleton import Layout, Split, layout_text, specs_of


def trim(parts: Split, trimmer: Trimmer) -> Split:
    """The entry without rows that can be restored. One that gains nothing, or is trimmed, stays as it is."""
    parsed = json.loads(parts.layout)
    trimmed = None if "padded" in parsed else trimmer.trim(parts.tensors)
    if trimmed is None:
        return parts
    layout = layout_text(specs_of(trimmed.tensors), parsed["root"], trimmed.rows)
    return Split(layout, parts.leaves, trimmed.tensors, parts, trimmed.saved)


def untrim(parts: Split) -> Split:
    """The entry with whole tensors, as `split` gives it."""
    layout = Layout(parts.layout)
    if layout.restore is None:
        return parts
    parsed = json.loads(parts.layout)
    helpers = {slot for _, _, _, *slots in parsed["padded"] for slot in slots if slot is not None}
    count = len(parts.tensors) - len(helpers)  # they follow the tensors of the structure
    if helpers and min(helpers) < count:
        raise CacheError("a stored layout has tensors in an order that no version of StreamCache writes")
    tensors = list(layout.restore(tuple(parts.tensors))[:count])
    return Split(layout_text(specs_of(tensors), parsed["root"]), parts.leaves, tensors)
