"""A running ComfyUI server: queues a workflow over HTTP, follows it over a WebSocket, returns its results."""

import contextlib
import json
import struct
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...errors import CacheError

if TYPE_CHECKING:
    from websocket import WebSocket

SILENCE_SECONDS = 5.0  # without a message, after which the history is checked, in case the last message was missed
PATIENCE_SECONDS = 60.0  # until a server that stopped answering counts as gone
RETRY_SECONDS = 1.0
_TEXT_EVENT = 3  # marks progress text among ComfyUI's binary messages
_ENDS = {"execution_success": "done", "execution_error": "failed", "execution_interrupted": "interrupted"}


@dataclass
class Outcome:
    """How a workflow ended. `outputs` are the results that its nodes show, by node."""

    prompt_id: str
    status: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    node: str = ""


@dataclass(frozen=True)
class Event:
    """A node started, made progress, wrote a text, or finished."""

    kind: str
    node: str = ""
    done: float = 0
    total: float = 0
    text: str = ""


class Messages:
    """The messages of an open WebSocket: str or bytes."""

    def __init__(self, url: str, timeout: float) -> None:
        self._library = _websocket_client()
        try:
            self._socket: WebSocket = self._library.create_connection(url, timeout=timeout, suppress_origin=True)
        except self._library.WebSocketException as error:
            raise ConnectionError(str(error)) from None

    def __enter__(self) -> "Messages":
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.shutdown()

    def __iter__(self) -> "Messages":
        return self

    def __next__(self) -> str | bytes:
        """The next message. Raises TimeoutError if none comes in time, StopIteration if the connection is closed."""
        try:
            kind, data = self._socket.recv_data()
        except self._library.WebSocketTimeoutException:
            raise TimeoutError from None
        except self._library.WebSocketException:
            raise StopIteration from None
        if kind == self._library.ABNF.OPCODE_CLOSE:
            raise StopIteration
        return data.decode("utf-8", "replace") if kind == self._library.ABNF.OPCODE_TEXT else data


class ComfyServer:
    """A server by its address, such as http://127.0.0.1:8188."""

    def __init__(self, address: str, timeout: float = 60.0) -> None:
        self.address = (address if "://" in address else f"http://{address}").rstrip("/")
        self._timeout = timeout
        self._client = uuid.uuid4().hex

    def get(self, path: str) -> Any:
        return self._request(path)

    def post(self, path: str, data: Any) -> Any:
        return self._request(path, data)

    def run(self, prompt: dict[str, Any], report: Callable[[Event], None] = lambda event: None) -> Outcome:
        """Queue a workflow and wait until it ends. Ctrl-C stops it on the server too."""
        with contextlib.ExitStack() as connections:
            events = connections.enter_context(self._listen())
            outcome = self.queue(prompt)
            if outcome.status:
                return outcome
            try:
                while not self._follow(outcome, events, report):
                    events = connections.enter_context(self._listen_again())
                    if self._is_over(outcome):  # it ended while there was no connection
                        break
                return outcome
            except KeyboardInterrupt:
                self.interrupt(outcome.prompt_id)
                raise

    def queue(self, prompt: dict[str, Any]) -> Outcome:
        """Queue a workflow and return at once. If the server refuses it, the outcome says so."""
        try:
            answer = self._request("/prompt", {"prompt": prompt, "client_id": self._client})
        except _Refused as refusal:
            return Outcome("", "refused", error=_validation_error(refusal.body), node=_first_node(refusal.body))
        if answer.get("node_errors"):
            # ComfyUI would run the valid part of the workflow only.
            self.interrupt(answer["prompt_id"])
            errors = {"node_errors": answer["node_errors"]}
            return Outcome(answer["prompt_id"], "refused", error=_validation_error(errors), node=_first_node(errors))
        return Outcome(answer["prompt_id"])

    def wait(self, outcome: Outcome) -> Outcome:
        """Wait until a queued workflow has ended, however long it takes."""
        while not self._is_over(outcome):
            time.sleep(0.1)
        return outcome

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Stop a workflow, queued or running; without an id, the one that runs."""
        if prompt_id is not None:
            self._request("/queue", {"delete": [prompt_id]})
        self._request("/interrupt", {"prompt_id": prompt_id})

    def _listen(self) -> Messages:
        try:
            return Messages(f"{self.address.replace('http', 'ws', 1)}/ws?clientId={self._client}", SILENCE_SECONDS)
        except (OSError, ValueError) as error:  # ValueError: invalid address
            raise self._unreachable(error) from None

    def _listen_again(self) -> Messages:
        """Connect again after the connection was lost: the workflow may run for hours still."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            time.sleep(RETRY_SECONDS)
            try:
                return self._listen()
            except CacheError:
                if time.monotonic() > end:
                    raise

    def _follow(self, outcome: Outcome, events: Messages, report: Callable[[Event], None]) -> bool:
        """Report events until the workflow ends; False if the connection is lost before that."""
        while True:
            try:
                message = next(events)
            except TimeoutError:
                if self._is_over(outcome):
                    return True
                continue
            except (StopIteration, OSError):
                return False
            for event in read_message(message, outcome.prompt_id):
                if event.kind in _ENDS:
                    _add_end(self.wait(outcome), event)
                    return True
                report(event)

    def _is_over(self, outcome: Outcome) -> bool:
        """Whether the workflow has ended, or another client has removed it from the queue."""
        if self._finished(outcome):
            return True
        queue = self._request("/queue")
        if any(outcome.prompt_id in entry for entries in queue.values() for entry in entries):
            return False
        if not self._finished(outcome):  # it may have ended between the two requests
            outcome.status, outcome.error = "removed", "found neither in the server's queue nor in its history"
        return True

    def _finished(self, outcome: Outcome) -> bool:
        entry = self._request(f"/history/{outcome.prompt_id}").get(outcome.prompt_id)
        if entry is None or not entry.get("status"):
            return False
        outcome.outputs = entry.get("outputs", {})
        for kind, data in entry["status"].get("messages", []):
            outcome.status = _ENDS.get(kind, outcome.status)
            if kind in _ENDS:
                outcome.error, outcome.node = data.get("exception_message", "").strip(), str(data.get("node_id", ""))
        outcome.status = outcome.status or "failed"
        return True

    def _request(self, path: str, data: Any = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.address + path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise _Refused(path, error.code, _parse(error.read())) from None
        except (urllib.error.URLError, OSError) as error:
            raise self._unreachable(getattr(error, "reason", error)) from None
        return _parse(text)

    def _unreachable(self, reason: object) -> CacheError:
        return CacheError(f"{self.address}: cannot connect: {reason}; start ComfyUI, or give its address with --server")


class _Refused(CacheError):
    def __init__(self, path: str, code: int, body: Any) -> None:
        super().__init__(f"{path}: the server returned {code}: {_validation_error(body)}")
        self.body = body


def _websocket_client() -> ModuleType:
    try:
        import websocket
    except ModuleNotFoundError:
        raise CacheError("streamcache run needs websocket-client; install it: pip install websocket-client") from None
    return websocket


def _add_end(outcome: Outcome, event: Event) -> None:
    """Prefer the reported end if the history lacks it.

    ComfyUI counts a workflow as done even if a node reported a blocked input, and users can clear the history.
    """
    if outcome.status == "removed" or (outcome.status == "done" and event.kind == "execution_error"):
        outcome.status, outcome.node, outcome.error = _ENDS[event.kind], event.node, event.text


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {"error": {"message": text[:200].decode("utf-8", "replace")}}


def _validation_error(body: Any) -> str:
    """The server's validation errors, node by node."""
    lines = []
    for node, found in (body.get("node_errors") or {}).items() if isinstance(body, dict) else ():
        for error in found.get("errors", []):
            lines.append(f"node {node} ({found.get('class_type', '')}): {error.get('message')}: {error.get('details')}")
    general = body.get("error") if isinstance(body, dict) else body
    if not lines and isinstance(general, dict):
        lines = [f"{general.get('message', '')} {general.get('details', '')}".strip()]
    return "; ".join(lines) or str(general)


def _first_node(body: Any) -> str:
    return next(iter(body.get("node_errors") or {}), "") if isinstance(body, dict) else ""


def read_message(message: str | bytes, prompt_id: str) -> Iterator[Event]:
    """The events in a message about this workflow; messages of other kinds or forms have none."""
    if isinstance(message, bytes):
        kind, length = struct.unpack_from(">II", message.ljust(8, b"\0"))
        if kind == _TEXT_EVENT:
            node, text = message[8 : 8 + length], message[8 + length :]
            yield Event("text", node.decode("utf-8", "replace"), text=text.decode("utf-8", "replace"))
        return
    found = _dict(_parse(message.encode("utf-8", "replace")))
    kind, data = str(found.get("type")), _dict(found.get("data"))
    if data.get("prompt_id") not in (None, prompt_id):
        return
    if kind in _ENDS:
        yield Event(kind, str(data.get("node_id") or ""), text=str(data.get("exception_message") or "").strip())
    elif kind == "executing" and data.get("node") is not None:
        yield Event("node", str(data["node"]))
    elif kind == "progress":
        yield Event("progress", str(data.get("node") or ""), _count(data.get("value")), _count(data.get("max")))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> float:
    return value if isinstance(value, (int, float)) and 0 <= value < float("inf") else 0
