"""What a page asks about: the cache of a name."""

from pathlib import Path

from ...dataset_cache import CacheError
from ..host.app import cache_roots
from ..library import parse_name, path_to_open
from .http import Question
from .refusals import Refused


def asked_cache(question: Question) -> tuple[str, Path]:
    """The name as lists show it, and where the cache is."""
    parts = parse_name(question.text("name"))
    name = "/".join(parts)
    try:
        return name, path_to_open(name, cache_roots())
    except CacheError as error:
        raise Refused(str(error), 404) from None
