"""A server on loopback that answers as Hugging Face's hub does for one dataset repository, with commits."""

import base64
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

REPO = "owner/name"
TOKEN = "hf_planted_token"


@dataclass
class Hub:
    """`commits` are folders by name; the last one is the newest. A private repository wants the token."""

    address: str
    commits: dict[str, Path] = field(default_factory=dict)
    private: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def hub_server() -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = unquote(urlsplit(self.path).path)
            if hub.private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.send(401, b"{}", {"X-Error-Code": "GatedRepo"})
            if match := re.fullmatch(rf"/api/datasets/{REPO}(?:/revision/(\w+))?", path):
                name = self.commit(match[1])
                return self.send_json({"id": REPO, "sha": name, "siblings": [], "tags": [], "private": hub.private})
            if match := re.fullmatch(rf"/api/datasets/{REPO}/paths-info/(\w+)", path):
                root = hub.commits[match[1]]
                return self.send_json([_entry(root, path) for path in _paths(body) if (root / path).exists()])
            if match := re.fullmatch(rf"/api/datasets/{REPO}/tree/(\w+)(?:/(.*))?", path):
                folder = hub.commits[match[1]] / (match[2] or "")
                if not folder.is_dir():
                    return self.send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                root = hub.commits[match[1]]
                return self.send_json([_entry(root, each.relative_to(root).as_posix()) for each in folder.iterdir()])
            if match := re.fullmatch(rf"/datasets/{REPO}/resolve/(\w+)/(.*)", path):
                return self.send_file(match[1], hub.commits[match[1]] / match[2])
            if re.fullmatch(rf"/api/datasets/{REPO}/preupload/\w+", path):
                files = [each["path"] for each in json.loads(body)["files"]]
                modes = [{"path": each, "uploadMode": "regular", "shouldIgnore": False} for each in files]
                return self.send_json({"files": modes})
            if match := re.fullmatch(rf"/api/datasets/{REPO}/commit/(\w+)", path):
                return self.add_commit(match[1], [json.loads(line) for line in body.splitlines()])
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        do_GET = do_HEAD = do_POST = answer

        def commit(self, revision: str | None) -> str:
            return revision if revision in hub.commits else list(hub.commits)[-1]

        def add_commit(self, branch: str, lines: list[dict[str, Any]]) -> None:
            """A commit follows the newest one on the branch, not any other; it may name that one."""
            header, *changes = lines
            with hub.guard:
                last = list(hub.commits)[-1]
                if branch != "main" or header["value"].get("parentCommit", last) != last:
                    return self.send(400 if branch != "main" else 412, b"{}", {})
                name = _sha(last.encode() + b"next")
                folder = shutil.copytree(hub.commits[last], hub.commits[last].parent / name)
                for change in changes:
                    place = folder / change["value"]["path"]
                    if change["key"] == "deletedFile":
                        place.unlink()
                        continue
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(base64.b64decode(change["value"]["content"]))
                hub.commits[name] = folder
            self.send_json({"commitUrl": f"{hub.address}/datasets/{REPO}/commit/{name}", "commitOid": name})

        def send_file(self, commit: str, path: Path) -> None:
            if not path.is_file():
                return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            data = path.read_bytes()
            tag = {"ETag": f'"{_sha(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            wanted = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("Range", ""))
            if not wanted:
                return self.send(200, data, tag)
            begin, end = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
            self.send(206, data[begin : end + 1], {**tag, "Content-Range": f"bytes {begin}-{end}/{len(data)}"})

        def send_json(self, value: object) -> None:
            self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _paths(body: bytes) -> list[str]:
    text = body.decode()
    if text.startswith("{"):
        found = json.loads(text)["paths"]
        return [found] if isinstance(found, str) else found
    return [unquote(part.partition("=")[2].replace("+", " ")) for part in text.split("&") if part.startswith("paths=")]


def _entry(root: Path, path: str) -> dict[str, object]:
    place = root / path
    if place.is_dir():
        return {"type": "directory", "path": path, "oid": _sha(path.encode()), "size": 0}
    data = place.read_bytes()
    return {"type": "file", "path": path, "oid": _sha(data), "size": len(data)}


def _sha(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
