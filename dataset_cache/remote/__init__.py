"""Remote: datasets at addresses, such as `s3://bucket/my_set`. Nothing of it is loaded unless an address is used."""

from .ranges import RangeReader
from .remote_storage import RemoteStorage
from .roots import resolve, roots

__all__ = ["RangeReader", "RemoteStorage", "resolve", "roots"]
