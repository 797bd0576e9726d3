"""A WebSocket as far as a client needs it to listen (RFC 6455), on the standard library alone."""

import base64
import hashlib
import os
import selectors
import socket
import ssl
import struct
from urllib.parse import urlsplit

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10
_LARGEST = 256 << 20
_LARGEST_HEAD = 1 << 16


class WebSocket:
    """An open connection. Iterating gives messages: str or bytes. `timeout` is of each wait for one."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "wss"
        self._socket = socket.create_connection((parts.hostname, parts.port or (443 if secure else 80)), timeout)
        if secure:
            self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=parts.hostname)
        self._buffer = bytearray()
        self._timeout = timeout
        self._shake_hands(parts.netloc, f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}")

    def __enter__(self) -> "WebSocket":
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def __iter__(self) -> "WebSocket":
        return self

    def __next__(self) -> str | bytes:
        """The next message. Raises TimeoutError if none comes in time, StopIteration when the server is done."""
        parts: list[bytes] = []
        kind = _TEXT
        while True:
            self._wait()
            last, code, data = self._read_frame()
            if code == _CLOSE:
                raise StopIteration
            if code == _PING:
                self._send(_PONG, data)
            elif code != _PONG:
                kind = code or kind  # 0 goes on with the message before
                parts.append(data)
                if last:
                    whole = b"".join(parts)
                    return whole.decode("utf-8", "replace") if kind == _TEXT else whole

    def _shake_hands(self, host: str, target: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {target} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self._buffer and len(self._buffer) < _LARGEST_HEAD:
            self._fill()
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer = bytearray(rest)
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        expected = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
        if " 101 " not in status or headers.get("sec-websocket-accept") != expected:
            raise ConnectionError(f"{host} does not speak WebSocket: {status or 'no answer'}")

    def _wait(self) -> None:
        """Wait until a frame begins. Frames come whole, so only here is nothing lost when nothing comes."""
        pending = self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0
        if not self._buffer and not pending:
            with selectors.DefaultSelector() as selector:
                selector.register(self._socket, selectors.EVENT_READ)
                if not selector.select(self._timeout):
                    raise TimeoutError

    def _read_frame(self) -> tuple[bool, int, bytes]:
        first, second = self._read(2)
        length = second & 127
        if length >= 126:
            length = int.from_bytes(self._read(2 if length == 126 else 8), "big")
        if length > _LARGEST or second & 128:  # a server never masks
            raise ConnectionError("the server sent a frame that is no frame")
        return bool(first & 128), first & 15, self._read(length)

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _fill(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            data = b""
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data

    def _send(self, code: int, data: bytes) -> None:
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self._socket.sendall(struct.pack("!BB", 128 | code, 128 | len(data)) + mask + masked)
