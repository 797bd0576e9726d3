"""What a page asks about: the cache of a name."""

from pathlib import Path

from ...dataset_cache.errors import CacheError
from ..library import paths
from ..pages.refusals import Refused
from .answers import Question
from .folders import cache_roots


def asked_cache(question: Question) -> tuple[str, Path]:
    """The name as lists show it, and where the cache is."""
    parts = paths.parse_name(question.text("name"))
    name = "/".join(parts)
    try:
        return name, paths.path_to_open(name, cache_roots())
    except CacheError as error:
        raise Refused(str(error), 404) from None
