"""Requests to the server as pages or attackers send them, and snapshots of its base folder."""

import http.client
import json
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from .server import Server

TEMPORARY = (".leases", ".lock", ".lock.holder")  # of readers and writers


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> str:
        return self.json["error"]


def get(server: Server, path: str, /, **values: Any) -> Answer:
    query = f"?{urlencode(values, errors='surrogatepass')}" if values else ""
    return send(server, "GET", f"/streamcache{path}{query}")


def post(server: Server, path: str, values: Any = None, **headers: str) -> Answer:
    body = json.dumps({} if values is None else values).encode()
    return send(server, "POST", f"/streamcache{path}", body, {"Content-Type": "application/json", **headers})


def send_zip(server: Server, data: bytes, /, **values: Any) -> Answer:
    query = urlencode(values, errors="surrogatepass")
    return send(server, "POST", f"/streamcache/folder/zip?{query}", data, {"Content-Type": "application/zip"})


def send(server: Server, method: str, target: str, body: bytes | None = None, headers: dict | None = None) -> Answer:
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=300)
    try:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def wait_for_job(server: Server, number: str, seconds: float = 60.0) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        job = next(each for each in get(server, "/jobs").json["jobs"] if each["id"] == number)
        if job["state"] != "running":
            return job
        time.sleep(0.05)
    raise AssertionError(f"the job did not end within {seconds:g} s")


def snapshot(base: Path, skip: tuple[str, ...] = ("server.log",)) -> dict[str, tuple]:
    """Every name below the base folder with size and time; nothing but locks and leases may differ after a refusal."""
    found = {}
    for path in sorted(base.rglob("*")):
        name = path.relative_to(base).as_posix()
        if name in skip or any(part in TEMPORARY for part in path.relative_to(base).parts):
            continue
        with suppress(FileNotFoundError):  # removed just now
            status = path.lstat()
            found[name] = (status.st_size, 0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns)
    return found
