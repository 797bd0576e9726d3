"""A workflow on a ComfyUI server is followed to its end, even if the connection drops or the queue changes."""

import base64
import hashlib
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from streamcache.cli.remote import comfy_server
from streamcache.cli.remote.comfy_server import ComfyServer, Event, Messages
from streamcache.dataset_cache import CacheError

ID = "p1"
DONE = {ID: {"status": {"messages": [["execution_success", {}]]}, "outputs": {"3": {"text": ["made"]}}}}
RUNNING = {"queue_running": [[0, ID, {}]], "queue_pending": []}
EMPTY = {"queue_running": [], "queue_pending": []}


def message(kind: str, **data: Any) -> str:
    return json.dumps({"type": kind, "data": {"prompt_id": ID, **data}})


class Server(ComfyServer):
    """Each connection yields its messages and raises those that are errors; histories and queues come in order."""

    def __init__(self, connections: list[list], histories: list[dict], queues: list[dict]) -> None:
        super().__init__("http://nowhere")
        self.connections, self.histories, self.queues = connections, histories, queues
        self.closed = 0

    def _listen(self) -> AbstractContextManager:
        messages = self.connections.pop(0)
        if messages == ["no answer"]:
            raise CacheError("does not answer")
        return self._connection(messages)

    @contextmanager
    def _connection(self, messages: list) -> Iterator[Iterator]:
        yield FakeMessages(messages)
        self.closed += 1

    def _request(self, path: str, data: Any = None) -> Any:
        if path == "/prompt":
            return {"prompt_id": ID}
        answers = self.histories if path.startswith("/history") else self.queues
        return answers.pop(0) if len(answers) > 1 else answers[0]


class FakeMessages:
    def __init__(self, messages: list) -> None:
        self.messages = messages

    def __next__(self) -> str:
        if not self.messages:
            raise StopIteration
        found = self.messages.pop(0)
        if isinstance(found, type):
            raise found
        return found


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only in sleeps, and their number is limited."""
    slept = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(slept[-1] + seconds)
        assert len(slept) < 50_000, "it waits forever"

    monkeypatch.setattr(comfy_server.time, "sleep", sleep)
    monkeypatch.setattr(comfy_server.time, "monotonic", lambda: slept[-1])
    return slept


def test_after_a_dropped_connection_events_come_from_the_next_one():
    first = [message("executing", node="1"), ConnectionError]
    second = [message("progress", node="1", value=3, max=9), TimeoutError, message("execution_success")]
    server = Server([first, ["no answer"], second], [{}, {}, {}, DONE], [RUNNING])
    events: list[Event] = []
    outcome = server.run({}, events.append)
    assert [event.kind for event in events] == ["node", "progress"]
    assert outcome.status == "done" and outcome.outputs == DONE[ID]["outputs"] and server.closed == 2


def test_it_waits_for_hours_of_training(clock: list[float]):
    server = Server([[message("execution_success")]], [{}] * 30_000 + [DONE], [RUNNING])
    assert server.run({}).status == "done" and clock[-1] > 600


def test_repeated_connection_losses_do_not_end_the_wait():
    server = Server([[OSError] for _ in range(700)] + [[message("execution_success")]], [{}] * 701 + [DONE], [RUNNING])
    assert server.run({}).status == "done"


def test_a_server_that_stays_unreachable_is_reported():
    server = Server([[ConnectionError]] + [["no answer"]] * 100, [{}], [RUNNING])
    with pytest.raises(CacheError, match="does not answer"):
        server.run({})


@pytest.mark.parametrize("messages", [[TimeoutError] * 3, [ConnectionError]])
def test_a_workflow_removed_from_the_queue_is_reported(messages: list):
    outcome = Server([messages, [TimeoutError]], [{}], [RUNNING, EMPTY]).run({})
    assert outcome.status == "removed" and "queue" in outcome.error


def test_a_workflow_that_ends_between_two_requests_is_not_reported_as_removed():
    assert Server([[TimeoutError]], [{}, DONE], [EMPTY]).run({}).status == "done"


def test_a_reported_end_counts_if_the_history_was_cleared():
    error = message("execution_error", node_id="7", exception_message="no memory")
    outcome = Server([[error]], [{}], [RUNNING, EMPTY]).run({})
    assert (outcome.status, outcome.node, outcome.error) == ("failed", "7", "no memory")


def answer_websocket(listener: socket.socket, *frames: bytes) -> None:
    """Accept one WebSocket, send these frames, and leave the connection open until the client ends it."""
    connection, _ = listener.accept()
    with connection:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        connection.sendall(upgrade(re.search(rb"Sec-WebSocket-Key: (\S+)", head)[1]) + b"".join(frames))
        while connection.recv(4096):
            pass


def upgrade(key: bytes) -> bytes:
    """The answer that makes a WebSocket of the connection of a request with this key."""
    accepted = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    lines = [b"HTTP/1.1 101 Switching Protocols", b"Upgrade: websocket", b"Connection: Upgrade"]
    return b"\r\n".join([*lines, b"Sec-WebSocket-Accept: " + accepted, b"", b""])


def frame(code: int, data: bytes) -> bytes:
    return bytes([128 | code, len(data)]) + data


def listen_to(*frames: bytes) -> Messages:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=answer_websocket, args=(listener, *frames), daemon=True).start()
    return Messages(f"ws://127.0.0.1:{listener.getsockname()[1]}/ws", 3)


def test_messages_are_text_or_bytes_and_silence_is_a_timeout():
    with listen_to(frame(9, b"ping"), frame(1, "ünï".encode()), frame(2, b"\0\1")) as messages:
        assert next(messages) == "ünï" and next(messages) == b"\0\1"
        with pytest.raises(TimeoutError):
            next(messages)


def test_messages_end_when_the_server_closes_the_connection():
    with listen_to(frame(1, b"last"), frame(8, b"\x03\xe8")) as messages:
        assert list(messages) == ["last"]


def test_a_server_without_websocket_is_reported():
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
    with pytest.raises(CacheError, match="cannot connect.*--server"):
        ComfyServer(f"127.0.0.1:{listener.getsockname()[1]}").run({})


def test_without_websocket_client_the_error_has_the_install_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "websocket", None)
    with pytest.raises(CacheError, match="pip install websocket-client"):
        ComfyServer("127.0.0.1:9").run({})
