"""Reading ahead: shards of remote datasets through local copies, which are fetched and kept by what is read next."""

from .limit import CACHE_LIMIT, cache_limit, parse_size, use_cache_limit
from .read_ahead import AheadFile, ReadAhead
from .traffic import Traffic

__all__ = ["CACHE_LIMIT", "AheadFile", "ReadAhead", "Traffic", "cache_limit", "parse_size", "use_cache_limit"]
