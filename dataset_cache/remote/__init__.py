"""Remote: datasets at addresses, such as `s3://bucket/my_set`. Nothing of it is loaded unless an address is used."""

from .local_copies import CACHE_DIR, CACHE_LIMIT, cache_limit, copies_folder, parse_size, use_cache_limit
from .ranges import RangeReader
from .read_ahead import AheadFile, ReadAhead
from .traffic import Traffic

__all__ = [
    "CACHE_DIR",
    "CACHE_LIMIT",
    "AheadFile",
    "RangeReader",
    "ReadAhead",
    "Traffic",
    "cache_limit",
    "copies_folder",
    "parse_size",
    "use_cache_limit",
]
