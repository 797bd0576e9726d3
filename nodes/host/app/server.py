"""ComfyUI's server while a workflow runs: progress of a node, events to open pages, and which node is running."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import comfy.model_management
import comfy.utils
from comfy_execution.utils import get_executing_context
from PIL import Image
from server import PromptServer

from ....dataset_cache import digest_of

_SECONDS_BETWEEN = 0.25  # texts; ComfyUI throttles its bars itself


class NodeProgress:
    """Progress bar, text and preview image of the node that runs in the creating thread. Any thread may use it."""

    def __init__(self) -> None:
        context = get_executing_context()
        self.node_id: str | None = context.node_id if context else None
        self._bar = comfy.utils.ProgressBar(1, node_id=self.node_id)
        self._shown_at = 0.0
        self._remark = ""

    def __call__(self, done: int, total: int | None, text: str = "") -> None:
        """Show the progress; stops here if the user asked to."""
        self.check()
        total = max(total or 0, done, 1)
        if done < self._bar.current or total != self._bar.total:
            # ComfyUI's bar never goes backwards, so every phase gets a new one.
            self._bar = comfy.utils.ProgressBar(total, node_id=self.node_id)
        self._bar.update_absolute(done, total)
        now = time.monotonic()
        if text and (now - self._shown_at >= _SECONDS_BETWEEN or done in (0, total)):
            self._shown_at = now
            self.show(text)

    def remark(self, text: str) -> None:
        """Show this below every further text; empty: nothing more."""
        self._remark = text

    def show(self, text: str) -> None:
        """Write Markdown on the node."""
        text = "\n".join(filter(None, [text, self._remark]))
        server = _server()
        # Only to the page that queued the workflow: on another canvas the same id is a different node.
        if server is not None and server.client_id is not None and self.node_id is not None:
            server.send_progress_text(text, self.node_id, server.client_id)

    def preview(self, done: int, total: int, image: Image.Image) -> None:
        """Show an image on the node."""
        self._bar.update_absolute(done, total, ("JPEG", image, 512))

    @staticmethod
    def check() -> None:
        """Raises ComfyUI's interrupt, a BaseException, if the user stopped the workflow."""
        comfy.model_management.throw_exception_if_processing_interrupted()


def send_event(event: str, facts: Mapping[str, Any], owner: str | None = None, private: Mapping[str, Any] = {}) -> None:
    """Send an event to every open page, with the `private` facts only to the page `owner`. Thread-safe."""
    server = _server()
    for client in list(getattr(server, "sockets", ())):
        server.send_sync(event, {**facts, **private} if client == owner else dict(facts), client)


def caches_changed() -> None:
    """Announce that a cache was added, changed or removed, so that pages refresh their lists."""
    send_event("streamcache.caches", {})


def current_client() -> str | None:
    """The page whose workflow is running."""
    return getattr(_server(), "client_id", None)


def caller_of(node_id: Any) -> str:
    """An id for a node together with everything that feeds it in the running workflow.

    ComfyUI does not pass the workflow to a node before it runs, so it is looked up in the queue. Without a server the
    id is that of the node alone.
    """
    node_id = str(node_id)
    queue = getattr(_server(), "prompt_queue", None)
    running = queue.get_current_queue_volatile()[0] if queue is not None else []
    prompt = next((item[2] for item in running if node_id in item[2]), {})
    upstream = {number: prompt[number] for number in _upstream(node_id, prompt)}
    feeding = {number: [node["class_type"], node["inputs"]] for number, node in upstream.items()}
    return f"{node_id} {digest_of(feeding)}"


def _server() -> Any:
    return getattr(PromptServer, "instance", None)  # None in a command without a server


def _upstream(node_id: str, prompt: dict[str, Any]) -> set[str]:
    """The node and all nodes that feed it, directly or indirectly."""
    found, waiting = set(), [node_id]
    while waiting:
        number = waiting.pop()
        if number in prompt and number not in found:
            found.add(number)
            waiting += _links(prompt[number].get("inputs", {}))
    return found


def _links(inputs: dict[str, Any]) -> Iterator[str]:
    for value in inputs.values():
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
            yield value[0]
