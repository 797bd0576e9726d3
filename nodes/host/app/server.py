"""Progress on a node: the host's bar and text, and its stop button."""

import time
from typing import Any

import comfy.model_management
import comfy.utils
from comfy_execution.utils import get_executing_context
from server import PromptServer

_SECONDS_BETWEEN = 0.25  # texts; bars are throttled by the host itself


class NodeProgress:
    """The progress of the node that runs in this thread when it is made. Any thread may call it then."""

    def __init__(self) -> None:
        context = get_executing_context()
        self.node_id: str | None = context.node_id if context else None
        self._bar = comfy.utils.ProgressBar(1, node_id=self.node_id)
        self._told = 0.0

    def __call__(self, done: int, total: int | None, text: str = "") -> None:
        """Show how far the work is, and stop here if the user asked to."""
        self.check()
        total = max(total or 0, done, 1)
        if done < self._bar.current or total != self._bar.total:
            # The host's bar holds back what is less than it showed last, so every phase has one of its own.
            self._bar = comfy.utils.ProgressBar(total, node_id=self.node_id)
        self._bar.update_absolute(done, total)
        now = time.monotonic()
        if text and (now - self._told >= _SECONDS_BETWEEN or done in (0, total)):
            self._told = now
            self.show(text)

    def show(self, text: str) -> None:
        """Write Markdown on the node."""
        server = getattr(PromptServer, "instance", None)
        # Only whoever queued the workflow: node ids of another's canvas mean other nodes.
        if server is not None and server.client_id is not None and self.node_id is not None:
            server.send_progress_text(text, self.node_id, server.client_id)

    def preview(self, done: int, total: int, image: Any) -> None:
        """Show a picture on the node."""
        self._bar.update_absolute(done, total, ("JPEG", image, 512))

    @staticmethod
    def check() -> None:
        """Raises the host's interrupt, a BaseException that nothing here holds back."""
        comfy.model_management.throw_exception_if_processing_interrupted()
