"""A proxy on loopback that passes requests on to a real server, and spoils some answers as networks and servers do."""

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CUT, CUT_BODY, TRUNCATE, STALL = "cut", "cut in the body", "truncate", "stall"
LIE_SIZE, LIE_TAG, WRONG_RANGE, NO_RANGES = "lie about the size", "lie about the tag", "another range", "no ranges"


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    range: str
    headers: dict[str, str] = field(hash=False)


@dataclass
class FaultProxy:
    """`fault` is asked for each request, with its number: a kind of fault, a status, or None to pass it on."""

    address: str
    latency: float = 0.0
    bytes_per_second: float = 0.0
    fault: Callable[[Seen, int], str | int | None] = lambda seen, number: None
    seen: list[Seen] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)  # ends what is stalled
    guard: threading.Lock = field(default_factory=threading.Lock)
    in_flight: int = 0
    most_in_flight: int = 0

    def clear(self) -> None:
        self.seen.clear()
        self.most_in_flight = 0


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy before `upstream`, a `host:port`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen = Seen(self.command, self.path, self.headers.get("Range", ""), dict(self.headers))
            with proxy.guard:
                number = len(proxy.seen)
                proxy.seen.append(seen)
                proxy.in_flight += 1
                proxy.most_in_flight = max(proxy.most_in_flight, proxy.in_flight)
            try:
                time.sleep(proxy.latency)
                _answer(self, proxy, upstream, body, proxy.fault(seen, number))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                with proxy.guard:
                    proxy.in_flight -= 1

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = FaultProxy(f"127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        server.shutdown()
        server.server_close()


def _answer(
    handler: BaseHTTPRequestHandler, proxy: FaultProxy, upstream: str, body: bytes, fault: str | int | None
) -> None:
    if isinstance(fault, int):
        handler.send_response(fault)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    if fault == CUT:
        handler.close_connection = True
        return
    status, headers, data = _ask(handler, upstream, body, fault == NO_RANGES)
    if fault == WRONG_RANGE and "Content-Range" in headers:
        data, span = data[1:] + b"x", headers["Content-Range"].partition("/")
        begin, end = (int(n) + 1 for n in span[0].removeprefix("bytes ").split("-"))
        headers["Content-Range"] = f"bytes {begin}-{end}/{span[2]}"
    if fault == LIE_SIZE and "Content-Range" in headers:
        headers["Content-Range"] = headers["Content-Range"].partition("/")[0] + "/99999999"
    if fault == LIE_TAG:
        headers["Etag"] = f'"{time.monotonic_ns()}"'
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "HEAD":
        return
    if fault in (CUT_BODY, TRUNCATE, STALL):
        handler.wfile.write(data[: len(data) // 2])
        handler.wfile.flush()
        if fault == STALL:
            proxy.released.wait(60)
        handler.close_connection = True
        return
    _send(handler, proxy, data)


def _ask(handler: BaseHTTPRequestHandler, upstream: str, body: bytes, whole: bool) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(upstream, timeout=30)
    kept = {k: v for k, v in handler.headers.items() if k.lower() != "connection" and not (whole and k == "range")}
    if whole:
        kept = {k: v for k, v in kept.items() if k.lower() != "range"}
    try:
        connection.request(handler.command, handler.path, body or None, kept)
        response = connection.getresponse()
        data = response.read()
        dropped = ("connection", "transfer-encoding", "date", "server", "content-length")
        headers = {name.title(): value for name, value in response.getheaders() if name.lower() not in dropped}
        size = response.getheader("Content-Length") if handler.command == "HEAD" else None
        headers["Content-Length"] = size or str(len(data))
        return response.status, headers, data
    finally:
        connection.close()


def _send(handler: BaseHTTPRequestHandler, proxy: FaultProxy, data: bytes) -> None:
    if not proxy.bytes_per_second:
        handler.wfile.write(data)
        return
    step = 64 << 10
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        handler.wfile.write(piece)
        time.sleep(len(piece) / proxy.bytes_per_second)
