"""Types beyond the built-in ones that may be stored, each with a way to take a value apart and to rebuild it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Codec:
    """`split` turns a value of `type` into a plain structure, `join` turns that structure back into the value.

    The name is what the cache stores: it must never change. `join` may be given lazy tensors.
    """

    name: str
    type: type
    split: Callable[[Any], Any]
    join: Callable[[Any], Any]


_by_name: dict[str, Codec] = {}
_by_type: dict[type, Codec] = {}


def register_codec(codec: Codec) -> None:
    """Make `codec` known to every writer and reader of this process. Registering a name again replaces it."""
    _by_name[codec.name] = codec
    _by_type[codec.type] = codec


def codec_for(value: Any) -> Codec | None:
    return _by_type.get(type(value))


def codec_named(name: str) -> Codec | None:
    return _by_name.get(name)
