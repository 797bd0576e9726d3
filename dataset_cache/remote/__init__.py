"""Remote: datasets at addresses, such as `s3://bucket/my_set`. Nothing of it is loaded unless an address is used."""

from .ranges import REQUEST_BYTES, RangeReader
from .remote_storage import RemoteStorage
from .roots import place_of, resolve, roots

__all__ = ["REQUEST_BYTES", "RangeReader", "RemoteStorage", "place_of", "resolve", "roots"]
