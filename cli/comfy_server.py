"""A running ComfyUI, met over HTTP and WebSocket: queue a workflow, hear how far it is, get its results."""

import contextlib
import json
import struct
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..dataset_cache import CacheError
from .websocket import WebSocket

SILENCE_SECONDS = 5.0  # without a message after which the history is asked, in case the last one was missed
PATIENCE_SECONDS = 60.0  # with a server that was there and does not answer now
RETRY_SECONDS = 1.0
_TEXT_EVENT = 3  # how the host marks progress text among binary messages
_ENDS = {"execution_success": "done", "execution_error": "failed", "execution_interrupted": "interrupted"}


@dataclass
class Outcome:
    """What became of a workflow. `outputs` are the nodes' results for the screen, by node."""

    prompt_id: str
    status: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    node: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happened: a node started, got further, wrote a text, or finished."""

    kind: str
    node: str = ""
    done: float = 0
    total: float = 0
    text: str = ""


class ComfyServer:
    """`address` as in the browser's bar, such as http://127.0.0.1:8188."""

    def __init__(self, address: str, timeout: float = 60.0) -> None:
        self.address = (address if "://" in address else f"http://{address}").rstrip("/")
        self._timeout = timeout
        self._client = uuid.uuid4().hex

    def get(self, path: str) -> Any:
        return self._request(path)

    def post(self, path: str, data: Any) -> Any:
        return self._request(path, data)

    def run(self, prompt: dict[str, Any], tell: Callable[[Event], None] = lambda event: None) -> Outcome:
        """Queue a workflow and wait until it is over. Ctrl-C stops it on the server too."""
        with contextlib.ExitStack() as connections:
            events = connections.enter_context(self._listen())
            outcome = self.queue(prompt)
            if outcome.status:
                return outcome
            try:
                while not self._follow(outcome, events, tell):
                    events = connections.enter_context(self._listen_again())
                    if self._is_over(outcome):  # while nobody listened
                        break
                return outcome
            except KeyboardInterrupt:
                self.interrupt(outcome.prompt_id)
                raise

    def queue(self, prompt: dict[str, Any]) -> Outcome:
        """Queue a workflow and return at once; one that the server refuses is over already."""
        try:
            answer = self._request("/prompt", {"prompt": prompt, "client_id": self._client})
        except _Refused as refusal:
            return Outcome("", "refused", error=_validation_error(refusal.body), node=_first_node(refusal.body))
        if answer.get("node_errors"):
            # The host runs what is left of such a workflow; half of it is not what was asked for.
            self.interrupt(answer["prompt_id"])
            errors = {"node_errors": answer["node_errors"]}
            return Outcome(answer["prompt_id"], "refused", error=_validation_error(errors), node=_first_node(errors))
        return Outcome(answer["prompt_id"])

    def wait(self, outcome: Outcome) -> Outcome:
        """Wait for a queued workflow by asking what became of it, however long it takes."""
        while not self._is_over(outcome):
            time.sleep(0.1)
        return outcome

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Stop a workflow, whether it waits or runs; without its id, whichever runs."""
        if prompt_id is not None:
            self._request("/queue", {"delete": [prompt_id]})
        self._request("/interrupt", {"prompt_id": prompt_id})

    def _listen(self) -> WebSocket:
        try:
            return WebSocket(f"{self.address.replace('http', 'ws', 1)}/ws?clientId={self._client}", SILENCE_SECONDS)
        except (OSError, ValueError) as error:  # ValueError: no address at all
            raise self._silent(error) from None

    def _listen_again(self) -> WebSocket:
        """The connection was lost, but what runs on the server may be hours from its end."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            time.sleep(RETRY_SECONDS)
            try:
                return self._listen()
            except CacheError:
                if time.monotonic() > end:
                    raise

    def _follow(self, outcome: Outcome, events: WebSocket, tell: Callable[[Event], None]) -> bool:
        """Tell what happens until the workflow is over; False if the connection is lost before."""
        while True:
            try:
                message = next(events)
            except TimeoutError:
                if self._is_over(outcome):
                    return True
                continue
            except (StopIteration, OSError):
                return False
            for event in _read_message(message, outcome.prompt_id):
                if event.kind in _ENDS:
                    _add_end(self.wait(outcome), event)
                    return True
                tell(event)

    def _is_over(self, outcome: Outcome) -> bool:
        """Whether the workflow has ended, or was taken out of the queue by somebody else."""
        if self._finished(outcome):
            return True
        queue = self._request("/queue")
        if any(outcome.prompt_id in entry for entries in queue.values() for entry in entries):
            return False
        if not self._finished(outcome):  # it may have ended between the two questions
            outcome.status, outcome.error = "removed", "it is no longer in the server's queue, nor in its history"
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
            raise self._silent(getattr(error, "reason", error)) from None
        return _parse(text)

    def _silent(self, reason: object) -> CacheError:
        return CacheError(f"{self.address} does not answer: {reason}; start ComfyUI, or name it with --server")


class _Refused(CacheError):
    def __init__(self, path: str, code: int, body: Any) -> None:
        super().__init__(f"{path}: the server answered {code}: {_validation_error(body)}")
        self.body = body


def _add_end(outcome: Outcome, event: Event) -> None:
    """What was heard counts where the history knows less.

    A node whose input was blocked tells why, but the host counts the workflow as done; and a history can be cleared.
    """
    if outcome.status == "removed" or (outcome.status == "done" and event.kind == "execution_error"):
        outcome.status, outcome.node, outcome.error = _ENDS[event.kind], event.node, event.text


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return {"error": {"message": text[:200].decode("utf-8", "replace")}}


def _validation_error(body: Any) -> str:
    """What the server found wrong, node by node."""
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


def _read_message(message: str | bytes, prompt_id: str) -> Iterator[Event]:
    if isinstance(message, bytes):
        kind, length = struct.unpack_from(">II", message.ljust(8, b"\0"))
        if kind == _TEXT_EVENT:
            node, text = message[8 : 8 + length], message[8 + length :]
            yield Event("text", node.decode("utf-8", "replace"), text=text.decode("utf-8", "replace"))
        return
    found = _parse(message.encode())
    kind, data = found.get("type"), found.get("data") or {}
    if data.get("prompt_id") not in (None, prompt_id):
        return
    if kind in _ENDS:
        yield Event(kind, str(data.get("node_id") or ""), text=data.get("exception_message", "").strip())
    elif kind == "executing" and data.get("node") is not None:
        yield Event("node", str(data["node"]))
    elif kind == "progress":
        yield Event("progress", str(data.get("node") or ""), data.get("value", 0), data.get("max", 0))
