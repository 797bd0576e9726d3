"""Reading ahead: shards of remote datasets through local copies, which are fetched and kept by what is read next."""

from .ahead_file import AheadFile
from .limit import use_cache_limit
from .read_ahead import ReadAhead
from .traffic import Traffic

__all__ = ["AheadFile", "ReadAhead", "Traffic", "use_cache_limit"]
