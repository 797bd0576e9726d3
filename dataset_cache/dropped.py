"""Keys that repair dropped, remembered in the manifest until they are stored again, so that an encode run knows why."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .manifest import Manifest

KEY = "dropped"
DAMAGED = "damaged"


def dropped_keys(manifest: Manifest) -> dict[bytes, str]:
    """Why entries that were stored once are there no more, by their key."""
    found = manifest.extra.get(KEY)
    return {bytes.fromhex(key): str(why) for key, why in found.items()} if isinstance(found, dict) else {}


def remember_dropped(extra: Mapping[str, Any], keys: Iterable[bytes], why: str) -> dict[str, Any]:
    """The manifest's further keys with these added."""
    return {**extra, KEY: {**extra.get(KEY, {}), **{key.hex(): why for key in keys}}}


def forget_stored(extra: Mapping[str, Any], is_stored: Callable[[bytes], bool]) -> dict[str, Any]:
    """The manifest's further keys without what was stored again."""
    kept = {key: why for key, why in extra.get(KEY, {}).items() if not is_stored(bytes.fromhex(key))}
    return {**{name: value for name, value in extra.items() if name != KEY}, **({KEY: kept} if kept else {})}
