"""Requests through obstore: `s3://`, `gs://`, `az://`, `http://` and `https://`."""

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, BinaryIO, TypeVar, cast

from ...errors import CacheError
from ..address import Address
from .aws import aws_options
from .client import ANY, Bytes, Found, Listing, Upload
from .faults import (
    CHANGED,
    CONFLICT,
    DENIED,
    MISSING,
    NO_CREDENTIALS,
    NO_RANGES,
    PASSING,
    REFUSED,
    REQUEST_SECONDS,
    TOO_SHORT,
    UNSUPPORTED,
    Fault,
    of_status,
)
from .roots import Options

_STALL_SECONDS = 10
_PART_RETRIES = 5  # of the parts of an upload; all other requests are repeated by `patiently`, which knows when to end
_URL = re.compile(r"https?://[^\s\"'<>]+")
_ROLES = re.compile(r"https?://(169\.254\.|metadata\.google|\S+/latest/(api/token|meta-data))")  # of this machine
_STATUS = re.compile(r"status code: ([0-9]{3})")
T = TypeVar("T")

# The threads of obstore do not run in a forked child; a call from there would hang it and disturb its parent. So stores
# are kept by process, and those of a parent are never freed in its children, because that closes what both share.
_stores: dict[int, dict[tuple[Address, Options, int], Any]] = {}


class ObstoreClient:
    """Requests below one address. The store is opened when it is first used, in each process."""

    def __init__(self, address: Address, options: Options) -> None:
        self._address, self._options = address, options

    def head(self, name: str) -> Found:
        return self._send(lambda obs, store: _found(obs.head(store, name)))

    def get(self, name: str, start: int, size: int) -> tuple[Found, Bytes]:
        def get(obs: Any, store: Any) -> tuple[Found, Bytes]:
            result = obs.get(store, name, options={"range": (start, start + size)})
            found, (first, end) = _found(result.meta), result.range
            data = memoryview(result.bytes())
            expected = min(start + size, found.size)
            if first != start or end != expected:
                raise Fault(CHANGED, f"asked for bytes from {start:,} to {expected:,}, got {first:,} to {end:,}")
            if len(data) != end - first:
                raise Fault(TOO_SHORT, f"{len(data):,} of {end - first:,}")
            return found, data

        return self._send(get)

    def list(self, folder: str) -> Listing:
        def listing(obs: Any, store: Any) -> Listing:
            found = obs.list_with_delimiter(store, folder or None)
            files = {_last(meta["path"]): _found(meta) for meta in found["objects"]}
            return Listing(files, [_last(prefix) for prefix in found["common_prefixes"]])

        self._refuse_web_server()
        return self._send(listing)

    def put(self, name: str, data: bytes, expected: str | None = ANY) -> None:
        self._refuse_web_server()
        mode = "overwrite" if expected == ANY else "create" if expected is None else {"e_tag": expected}
        self._send(lambda obs, store: obs.put(store, name, data, mode=mode, use_multipart=False))

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        self._refuse_web_server()
        file = self._send(lambda obs, store: obs.open_writer(store, name), _PART_RETRIES)
        yield cast(BinaryIO, Upload(lambda data: self._send(lambda obs, store: file.write(data))))
        self._send(lambda obs, store: file.close())  # without this, nothing has the name

    def copy(self, name: str, to: str) -> None:
        self._send(lambda obs, store: obs.copy(store, name, to))

    def delete(self, name: str) -> None:
        self._refuse_web_server()
        self._send(lambda obs, store: obs.delete(store, name))

    def _refuse_web_server(self) -> None:
        """Plain web servers send files. WebDAV, which obstore would speak, is not what people mean by http://."""
        if self._address.scheme in ("http", "https"):
            raise Fault(UNSUPPORTED)

    def _send(self, call: Callable[[Any, Any], T], retries: int = 0) -> T:
        obs = _obstore(self._address)
        try:
            return call(obs, self._store(retries))
        except Exception as error:
            if isinstance(error, Fault | CacheError):
                raise
            raise _fault(error, self._address.scheme) from None  # its text may contain a signature

    def _store(self, retries: int) -> Any:
        own = _stores.setdefault(os.getpid(), {})
        key = (self._address, self._options, retries)
        if key not in own:
            if any(pid != os.getpid() for pid in _stores):
                raise CacheError(
                    f"{self._address}: this process was forked from one that read from an address, which cannot go on "
                    'here; start workers with "spawn", for a DataLoader with multiprocessing_context="spawn"'
                )
            own[key] = _open_store(self._address, self._options, retries)
        return own[key]


def _obstore(address: Address) -> Any:
    try:
        return importlib.import_module("obstore")
    except ImportError:
        raise CacheError(
            f"{address}: needs the package obstore (Python 3.11 or newer); install it: pip install streamcache[remote]"
        ) from None


def _open_store(address: Address, options: Options, retries: int) -> Any:
    stores = importlib.import_module("obstore.store")
    aws = aws_options(options) if address.scheme == "s3" else {}
    plain = address.scheme == "http" or aws.get("endpoint", options.endpoint).startswith("http:")
    common: dict[str, Any] = {
        "client_options": {
            "allow_http": plain or (address.scheme == "s3" and _has_plain_endpoint()),
            "connect_timeout": timedelta(seconds=_STALL_SECONDS),
            "read_timeout": timedelta(seconds=_STALL_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "user_agent": "streamcache",
        },
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=REQUEST_SECONDS)},
    }
    if address.scheme in ("http", "https"):
        return stores.HTTPStore(str(address), **common)
    prefix = {"prefix": address.path} if address.path else {}
    anonymous = {"skip_signature": True} if options.anonymous else {}
    if address.scheme == "s3":
        return stores.S3Store(address.host, **prefix, **aws, **anonymous, **common)
    if address.scheme == "gs":
        return stores.GCSStore(address.host, **prefix, **anonymous, **common)
    endpoint = {"endpoint": options.endpoint} if options.endpoint else {}
    return stores.AzureStore(address.host, **prefix, **endpoint, **anonymous, **common)


def _has_plain_endpoint() -> bool:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return any(os.environ.get(name, "").startswith("http:") for name in names)


def _found(meta: Any) -> Found:
    return Found(meta["size"], meta["last_modified"].timestamp(), meta.get("e_tag") or "")


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _fault(error: Exception, scheme: str) -> Fault:
    """The fault behind an error of obstore. Its class is not enough: many are `GenericError`."""
    whole, name = str(error), type(error).__name__
    text = _URL.sub("", whole)  # the names of buckets and files say nothing
    status = _STATUS.search(text)
    if _ROLES.search(whole) or ("credential" in text.lower() and not status):
        return Fault(NO_CREDENTIALS)
    if name in ("PreconditionError", "AlreadyExistsError"):
        return Fault(CONFLICT)
    if status and not status[1].startswith("2"):
        return of_status(int(status[1]), text)
    if isinstance(error, FileNotFoundError):
        return Fault(MISSING)
    if name in ("PermissionDeniedError", "UnauthenticatedError"):
        return Fault(DENIED)
    if name in ("NotSupportedError", "NotImplementedError"):
        return Fault(NO_RANGES if "range" in text.lower() else UNSUPPORTED)
    if "range" in text.lower() and ("not supported" in text.lower() or "partial" in text.lower()):
        return Fault(NO_RANGES)
    if "redirect" in text.lower():
        return Fault(REFUSED, "redirected, as for a wrong region")
    return Fault(PASSING, _what_passes(text))


def _what_passes(text: str) -> str:
    lower = text.lower()
    for word, shown in (
        ("timed out", "no answer in time"),
        ("timedout", "no answer in time"),
        ("dns", "the name of the host is not known"),
        ("certificate", "its certificate is not trusted"),
        ("connect", "no connection"),
    ):
        if word in lower:
            return shown
    return "the connection was cut"
