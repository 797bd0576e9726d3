"""Requests through a file system of fsspec, where obstore is missing."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar, cast

from ...errors import CacheError
from ..address import Address
from .client import ANY, Bytes, Found, Listing, Upload
from .faults import CONFLICT, DENIED, MISSING, PASSING, REFUSED, TOO_SHORT, UNSUPPORTED, Fault, of_status
from .roots import Options

_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "http": "aiohttp", "https": "aiohttp"}
_TAGS = ("etag", "ETag", "blob_id", "sha256", "mtime", "LastModified", "last_modified")
_TIMES = ("mtime", "LastModified", "last_modified", "created")
T = TypeVar("T")


class FsspecClient:
    """Requests below one address. The file system is opened when it is first used, in each process."""

    def __init__(self, address: Address, options: Options) -> None:
        self._address, self._options = address, options
        self._opened: tuple[int, Any, str] | None = None
        self._known: dict[str, Found] = {}  # as of the last look, because a range comes without them

    def head(self, name: str) -> Found:
        def look(fs: Any, path: str) -> Found:
            fs.invalidate_cache()
            found = fs.info(path)
            if found["type"] != "file":
                raise Fault(MISSING)
            self._known[name] = _found(found)
            return self._known[name]

        return self._send(name, look)

    def get(self, name: str, start: int, size: int) -> tuple[Found, Bytes]:
        found = self.head(name) if start == 0 or name not in self._known else self._known[name]
        end = min(start + size, found.size)
        data = self._send(name, lambda fs, path: fs.cat_file(path, start=start, end=end)) if end > start else b""
        if len(data) != max(end - start, 0):
            raise Fault(TOO_SHORT, f"{len(data):,} of {end - start:,}")
        return found, data

    def list(self, folder: str) -> Listing:
        def look(fs: Any, path: str) -> Listing:
            fs.invalidate_cache()
            found = [entry for entry in fs.ls(path, detail=True) if entry["name"].strip("/") != path.strip("/")]
            files = {_last(entry["name"]): _found(entry) for entry in found if entry["type"] == "file"}
            return Listing(files, [_last(entry["name"]) for entry in found if entry["type"] != "file"])

        if self._address.scheme in ("http", "https"):  # a list would be guessed from links of a page
            raise Fault(UNSUPPORTED)
        return self._send(folder, look)

    def put(self, name: str, data: bytes, expected: str | None = ANY) -> None:
        """Without conditional writes, a race is noticed before and after, and what came later stays."""
        if expected != ANY and self._tag(name) != expected:
            raise Fault(CONFLICT)
        self._send(name, lambda fs, path: fs.pipe_file(path, data))
        if expected != ANY and bytes(self._send(name, lambda fs, path: fs.cat_file(path))) != data:
            raise Fault(CONFLICT)

    def _tag(self, name: str) -> str | None:
        try:
            return self.head(name).tag
        except Fault as fault:
            if fault.kind != MISSING:
                raise
            return None

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        file = self._send(name, lambda fs, path: fs.open(path, "wb", autocommit=False))
        try:
            yield cast(BinaryIO, Upload(lambda data: self._send(name, lambda fs, path: file.write(data))))
        except BaseException:  # `close` would upload what was written so far
            _abandon(file)
            raise
        self._send(name, lambda fs, path: (file.close(), file.commit()))

    def copy(self, name: str, to: str) -> None:
        data = bytes(self._send(name, lambda fs, path: fs.cat_file(path)))
        self._send(to, lambda fs, path: fs.pipe_file(path, data))

    def delete(self, name: str) -> None:
        self._send(name, lambda fs, path: fs.rm_file(path))

    def _send(self, name: str, call: Callable[[Any, str], T]) -> T:
        try:
            fs, root = self._open()
            return call(fs, f"{root}/{name}" if name else root)
        except (Fault, CacheError):
            raise
        except Exception as error:
            raise _fault(error) from None  # its text may contain a signature

    def _open(self) -> tuple[Any, str]:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), *self._open_file_system())
        return self._opened[1:]

    def _open_file_system(self) -> tuple[Any, str]:
        """The file system, and the path of the address in it."""
        return _open_file_system(self._address, self._options)


def package_missing(address: Address, package: str) -> CacheError:
    return CacheError(f"{address}: needs the package {package}; install it: pip install streamcache[remote] {package}")


def _open_file_system(address: Address, options: Options) -> tuple[Any, str]:
    try:
        importlib.import_module(_PACKAGES[address.scheme])
        core = importlib.import_module("fsspec.core")
    except ImportError:
        raise package_missing(address, _PACKAGES[address.scheme]) from None
    settings: dict[str, Any] = {"skip_instance_cache": True}
    if address.scheme == "s3":
        settings |= {"anon": options.anonymous, "profile": options.profile or None}
        settings |= {"endpoint_url": options.endpoint or os.environ.get("AWS_ENDPOINT_URL") or None}
    fs, root = core.url_to_fs(str(address), **settings)
    return fs, root.rstrip("/")


def _abandon(file: Any) -> None:
    """Drop a file that was not written to its end, with what was stored of it so far."""
    with contextlib.suppress(Exception):
        try:
            file.closed = True
        except AttributeError:  # a file on a disk, which is under another name before `commit`
            file.close()
        file.discard()


def _found(info: dict[str, Any]) -> Found:
    tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
    time: Any = next((info[name] for name in _TIMES if info.get(name)), 0.0)
    return Found(int(info["size"] or 0), time if isinstance(time, float | int) else time.timestamp(), tag)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _fault(error: Exception) -> Fault:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None) or getattr(error, "status", None)
    if isinstance(status, int):
        return of_status(status)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return Fault(MISSING)
    if isinstance(error, PermissionError):
        return Fault(DENIED)
    if isinstance(error, NotImplementedError):
        return Fault(UNSUPPORTED)
    if isinstance(error, ValueError | TypeError | LookupError | AttributeError):  # no fault of the network
        return Fault(REFUSED, type(error).__name__)
    return Fault(PASSING, "no answer in time" if "timeout" in type(error).__name__.lower() else "no connection")
