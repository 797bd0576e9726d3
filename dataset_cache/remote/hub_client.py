"""A dataset repository of Hugging Face: read as of one commit, written by commits that follow it."""

import contextlib
import importlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, cast

from ...errors import CacheError
from ..address import Address
from .client import ANY
from .faults import CONFLICT, Fault, patiently
from .fsspec_client import FsspecClient, package_missing
from .roots import Options

_DATASETS = "datasets"
_SECONDS = 10.0
_MESSAGE = "Update a StreamCache dataset"


class HubClient(FsspecClient):
    """Reads the newest commit when it is first used, so what others push later does not change what is read.

    Each write is a commit, and what is read from then on is as of that one.
    """

    def __init__(self, address: Address, options: Options) -> None:
        super().__init__(address, options)
        parts = address.path.split("/")
        if address.host != _DATASETS or len(parts) < 2:
            raise CacheError(f"{address}: is not a dataset of Hugging Face; expected hf://datasets/owner/name/path")
        name, _, revision = parts[1].partition("@")
        self._repository, self._revision, self._below = f"{parts[0]}/{name}", revision or None, parts[2:]
        self._commit = ""
        self._writing: tuple[int, threading.Lock] | None = None

    def put(self, name: str, data: bytes, expected: str | None = ANY) -> None:
        """With `expected`, refused also if there was any other commit since the one that is read."""
        if expected != ANY and self._tag(name) != expected:
            raise Fault(CONFLICT)
        try:
            self._send_commit(lambda hub: [self._addition(hub, name, data)], guarded=expected != ANY)
        except Fault as fault:
            if fault.kind == CONFLICT:
                self._opened = None  # see what others have pushed
            raise

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        with tempfile.TemporaryDirectory(prefix="streamcache-") as folder:
            path = os.path.join(folder, "file")
            with open(path, "wb") as file:
                yield cast(BinaryIO, file)
            addition = self._send(name, lambda fs, _: self._uploaded(name, path))
            patiently(lambda: self._send_commit(lambda hub: [addition]))

    def copy(self, name: str, to: str) -> None:
        self.put(to, bytes(self._send(name, lambda fs, path: fs.cat_file(path))))

    def delete(self, name: str) -> None:
        self.head(name)  # a commit that removes nothing is refused
        self._send_commit(lambda hub: [hub.CommitOperationDelete(path_in_repo=self._path(name))])

    def _uploaded(self, name: str, path: str) -> Any:
        """A file that was sent, and is in no commit yet."""
        hub = importlib.import_module("huggingface_hub")
        addition = self._addition(hub, name, path)
        where = {"repo_type": "dataset", "revision": self._revision}
        hub.HfApi().preupload_lfs_files(self._repository, [addition], **where)
        return addition

    def _addition(self, hub: Any, name: str, data: bytes | str) -> Any:
        return hub.CommitOperationAdd(path_in_repo=self._path(name), path_or_fileobj=data)

    def _send_commit(self, operations: Callable[[Any], Sequence[Any]], guarded: bool = False) -> None:
        """One commit at a time. A `guarded` one is refused if another has followed the one that is read."""

        def send(fs: Any, _: str) -> None:
            hub = importlib.import_module("huggingface_hub")
            done = hub.HfApi().create_commit(
                self._repository,
                operations(hub),
                commit_message=_MESSAGE,
                repo_type="dataset",
                revision=self._revision,
                parent_commit=self._commit if guarded else None,
            )
            self._opened = (os.getpid(), fs, self._at(done.oid))

        with self._lock():
            self._send("", send)

    def _lock(self) -> threading.Lock:
        if self._writing is None or self._writing[0] != os.getpid():
            self._writing = (os.getpid(), threading.Lock())
        return self._writing[1]

    def _path(self, name: str) -> str:
        return "/".join([*self._below, name])

    def _at(self, commit: str) -> str:
        self._commit = commit
        owner, name = self._repository.split("/")
        return "/".join([_DATASETS, owner, f"{name}@{commit}", *self._below])

    def _open_file_system(self) -> tuple[Any, str]:
        try:
            hub = importlib.import_module("huggingface_hub")
        except ImportError:
            raise package_missing(self._address, "huggingface_hub") from None
        found = hub.HfApi().dataset_info(self._repository, revision=self._revision, timeout=_SECONDS)
        return hub.HfFileSystem(skip_instance_cache=True), self._at(found.sha)
