"""What a page asks about: the cache of a name."""

from pathlib import Path

from ...dataset_cache.errors import CacheError
from ..host.folders import cache_roots
from ..library import paths
from .http import Question
from .refusals import Refused


def asked_cache(question: Question) -> tuple[str, Path]:
    """The name as lists show it, and where the cache is."""
    parts = paths.parse_name(question.text("name"))
    name = "/".join(parts)
    try:
        return name, paths.path_to_open(name, cache_roots())
    except CacheError as error:
        raise Refused(str(error), 404) from None
