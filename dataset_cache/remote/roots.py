"""Temporary stand-in until storage by address is merged."""

import json
import os
from pathlib import Path

from ...errors import CacheError


def roots() -> dict[str, str]:
    file = os.environ.get("STREAMCACHE_ROOTS", "")
    return json.loads(Path(file).read_text()) if file and Path(file).exists() else {}


def resolve(text: str) -> str:
    name, _, rest = text.partition("/")
    found = roots().get(name)
    if found is None:
        raise CacheError(f"{name}: no registered root; known: {', '.join(roots()) or 'none'}")
    return f"{found}/{rest}" if rest else found
