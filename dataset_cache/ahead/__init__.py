"""Reading ahead: shards of remote datasets through local copies, which are fetched and kept by what is read next."""

from .limit import parse_size, use_cache_limit
from .read_ahead import AheadFile, ReadAhead
from .traffic import Traffic

__all__ = ["AheadFile", "ReadAhead", "Traffic", "parse_size", "use_cache_limit"]
