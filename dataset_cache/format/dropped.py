"""Keys that repair dropped, remembered in the manifest until they are stored again, so that an encode run knows why."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .manifest import Manifest

KEY = "dropped"
DAMAGED = "damaged"
_HEX = re.compile(r"[0-9a-f]{32}")


def dropped_keys(manifest: Manifest) -> dict[bytes, str]:
    """Why entries that were stored once are there no more, by their key."""
    return {bytes.fromhex(key): why for key, why in _known(manifest.extra).items()}


def remember_dropped(extra: Mapping[str, Any], keys: Iterable[bytes], why: str) -> dict[str, Any]:
    """The manifest's further keys with these added."""
    return {**extra, KEY: {**_known(extra), **{key.hex(): why for key in keys}}}


def forget_stored(extra: Mapping[str, Any], is_stored: Callable[[bytes], bool]) -> dict[str, Any]:
    """The manifest's further keys without what was stored again."""
    kept = {key: why for key, why in _known(extra).items() if not is_stored(bytes.fromhex(key))}
    return {**{name: value for name, value in extra.items() if name != KEY}, **({KEY: kept} if kept else {})}


def _known(extra: Mapping[str, Any]) -> dict[str, str]:
    """What is remembered, by the hex digits of the key. The rest of what stands there nobody here wrote."""
    found = extra.get(KEY)
    rows = found.items() if isinstance(found, dict) else ()
    return {key: str(why) for key, why in rows if _HEX.fullmatch(key)}
