"""The settings of encoding, declared once: node inputs, flags, TOML files and docs/encoding.md come from these tables.

Each setting is declared at its dataclass field: Captions, Masks, Transform and FolderSource in sources/, Settings here.
A setting has one name everywhere; fields have shorter ones, which the manifest records.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import CacheError
from ...setting import COLORS, Setting, check_settings, closest_name, declare, settings_of
from ..sources import Captions, FolderSource, Masks, Transform

_MAX_DECODERS = 8  # unless set


@dataclass(frozen=True)
class Settings:
    """How a plan is encoded. Only transform, thumbnail and background decide the content of entries."""

    transform: Transform = field(default_factory=Transform)
    batch_size: int = declare(
        4, "Images per VAE call; halved automatically when memory runs out", "run", low=1, shown=(1, 256)
    )
    text_batch_size: int = declare(
        8,
        "Captions that share text encoder calls if they have the same number of tokens; halved automatically when "
        "memory runs out (1 = each alone, bit for bit as CLIP Text Encode)",
        "run",
        low=1,
        shown=(1, 256),
    )
    thumbnail: int = declare(
        128, "Longer side of the stored thumbnails, in pixels (0 = none)", "run", low=0, shown=(0, 512), step=16
    )
    background: tuple[int, int, int] = declare(COLORS["white"], "Background color behind transparent images", "run")
    threads: int = declare(0, "Threads that decode images (0 = automatic)", "run", low=0)
    trim_padding: bool = declare(
        True,
        "Store the padding of captions, and rows that many captions begin with, once. They are restored bit for bit "
        "(off = caches that version 0.2 can read)",
        "run",
    )
    trust: bool = declare(False, "Assume that files encoded before are unchanged, without checking them", "run")
    check: bool = declare(False, "Verify checksums of the cache first, and encode damaged entries again", "run")
    allow_missing: bool = declare(
        False, "Encode without source folders that are missing or empty; their encoded images are kept", "run"
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def decoders(self) -> int:
        """Threads that decode: two more than there are processors, unless set."""
        return self.threads or min(_MAX_DECODERS, (os.cpu_count() or 1) + 2)


_PLAN = {"transform": Transform, "": Settings}
_SOURCE = {"captions": Captions, "masks": Masks, "": FolderSource}


def _table(parts: Mapping[str, type]) -> dict[str, Setting]:
    return {setting.name: setting for kind in parts.values() for setting in settings_of(kind).values()}


TRANSFORM_SETTINGS = _table({"": Transform})
PLAN_SETTINGS = _table(_PLAN)  # of a plan as a whole
SOURCE_SETTINGS = _table(_SOURCE)  # of one folder
ENCODE_SETTINGS = {**PLAN_SETTINGS, **SOURCE_SETTINGS}


def load_settings(values: Mapping[str, Any], place: str = "settings") -> Settings:
    """Settings from named values, also under old names; `place` begins every error."""
    parts = _sort(values, _PLAN, place)
    return _make(Settings, {**parts[""], "transform": _make(Transform, parts["transform"], place)}, place)


def load_transform(values: Mapping[str, Any], place: str) -> Transform:
    return _make(Transform, _sort(values, {"": Transform}, place)[""], place)


def load_source(
    path: str | os.PathLike[str], values: Mapping[str, Any], place: str, transform: Transform | None = None
) -> FolderSource:
    """A folder with settings from named values, also under old names."""
    parts = _sort(values, _SOURCE, place)
    made = {"captions": _make(Captions, parts["captions"], place), "masks": _make(Masks, parts["masks"], place)}
    if not parts[""].get("samples"):
        parts[""].pop("samples", None)  # 0: all
    return _make(FolderSource, {"path": path, **parts[""], **made, "transform": transform}, place)


def _sort(values: Mapping[str, Any], parts: Mapping[str, type], place: str) -> dict[str, dict[str, Any]]:
    """Part → field → value. A table named after a part may have its settings, under the names of its fields too."""
    found: dict[str, dict[str, Any]] = {part: {} for part in parts}
    names = {n: (p, f) for p, k in parts.items() for f, s in settings_of(k).items() for n in (s.name, *s.old_names)}
    for name, value in values.items():
        if name and name in parts and isinstance(value, Mapping):
            fields = {f: (name, f) for f in settings_of(parts[name])}
            _take(found, value, {**fields, **{n: at for n, at in names.items() if at[0] == name}}, f"{place}: [{name}]")
        elif name and name in parts and name not in names:
            example = next(iter(settings_of(parts[name]).values())).name
            raise CacheError(f"{place}: {name} = {value!r}: expected a table [{name}] of settings, such as {example}")
        else:
            _take(found, {name: value}, names, place)
    return found


def _take(
    found: dict[str, dict[str, Any]], values: Mapping[str, Any], names: Mapping[str, tuple[str, str]], place: str
) -> None:
    for name, value in values.items():
        if name not in names:
            hint = closest_name(name, names) or f"; expected one of {', '.join(names)}"
            raise CacheError(f"{place}: {name} is not a setting here{hint}")
        part, at = names[name]
        if at in found[part]:
            raise CacheError(f"{place}: {name} is set twice, once under another name; keep one of them")
        found[part][at] = value


def _make(kind: type, values: Mapping[str, Any], place: str) -> Any:
    try:
        return kind(**values)
    except CacheError as error:
        raise CacheError(f"{place}: {error}") from None
