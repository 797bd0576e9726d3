"""Which kinds of addresses there are, and what each is reached through."""

import importlib.util

from ..address import Address
from .client import Client
from .fsspec_client import FsspecClient
from .obstore_client import ObstoreClient
from .remote_storage import RemoteStorage
from .roots import options_for

KINDS = ("s3", "gs", "az", "http", "https", "hf")


def open_remote(text: str) -> RemoteStorage:
    """The storage at an address. No request is made, and nothing of another package is loaded, before it is used."""
    address = Address.parse(text)
    return RemoteStorage(address, _client(address))


def _client(address: Address) -> Client:
    options = options_for(address)
    if address.scheme == "hf" or not importlib.util.find_spec("obstore"):
        return FsspecClient(address, options)
    return ObstoreClient(address, options)
