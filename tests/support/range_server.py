"""A web server that answers ranges of the files in a folder, with latency, a byte rate and faults.

python -m streamcache.tests.support.range_server FOLDER --latency 0.05 --rate 100e6   prints its port
"""

import argparse
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_PART = 128 << 10
TRAFFIC = "~traffic"  # under this name, [requests, bytes] until now


@dataclass
class Line:
    """What the network does: `latency` seconds before each answer, `rate` bytes per second of all answers together.

    `fault` may change the answer to a request: it gets the name, offset and data, and returns a status and the data.
    """

    latency: float = 0.0
    rate: float = 0.0
    fault: Callable[[str, int, bytes], tuple[int, bytes]] | None = None
    requests: list[tuple[str, int, int]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    _free: float = 0.0
    _lock: Any = field(default_factory=threading.Lock)

    def wait(self) -> None:
        """What passes between a request and its answer."""
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        time.sleep(self.latency)
        with self._lock:
            self.in_flight -= 1

    def take(self, nbytes: int) -> None:
        """Wait until so many bytes have gone over the line."""
        if not self.rate:
            return
        with self._lock:
            self._free = max(self._free, time.monotonic()) + nbytes / self.rate
            until = self._free
        time.sleep(max(until - time.monotonic(), 0))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    line: Line

    def do_GET(self) -> None:
        name, match = self.path.lstrip("/"), _RANGE.fullmatch(self.headers.get("Range", ""))
        file = self.folder / name
        if name == TRAFFIC:
            counts = [len(self.line.requests), sum(size for *_, size in self.line.requests)]
            return self._answer(200, json.dumps(counts).encode(), {})
        if not file.is_file():
            return self._answer(404, b"", {})
        total = file.stat().st_size
        start, stop = (int(match[1]), min(int(match[2]) + 1, total)) if match else (0, total)
        with open(file, "rb") as stream:
            stream.seek(start)
            data = b"" if self.command == "HEAD" else stream.read(stop - start)
        self.line.requests.append((name, start, len(data)))
        self.line.wait()
        status, length = 206 if match else 200, stop - start
        if self.line.fault is not None and self.command == "GET":
            status, data = self.line.fault(name, start, data)
            length = len(data)
        facts = {"Content-Length": str(length), "ETag": f'"{file.stat().st_mtime_ns:x}-{total:x}"',
                 "Last-Modified": formatdate(file.stat().st_mtime, usegmt=True), "Accept-Ranges": "bytes"}  # fmt: skip
        if match:
            facts["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
        self._answer(status, data, facts)

    do_HEAD = do_GET

    def _answer(self, status: int, data: bytes, facts: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **facts}.items():
            self.send_header(name, value)
        self.end_headers()
        for at in range(0, len(data), _PART):
            self.line.take(len(data[at : at + _PART]))
            self.wfile.write(data[at : at + _PART])

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error of the server."""


@contextmanager
def serving(folder: Path, line: Line | None = None) -> Iterator[tuple[str, Line]]:
    """Serve a folder on loopback; the address, and the line, which can be changed."""
    line = line or Line()
    handler = type("Handler", (_Handler,), {"folder": folder, "line": line})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", line
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0)
    options = parser.parse_args()
    with serving(options.folder, Line(options.latency, options.rate)) as (address, _):
        print(address, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
