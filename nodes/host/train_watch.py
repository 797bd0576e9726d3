"""Watching a training on its node: bar, text, the loss curve and sample pictures, live; and the stop button."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from PIL import Image
from server import PromptServer

from ...lora_train.loop import Hooks
from ...lora_train.plots import draw_grid, plot_loss
from ...lora_train.report import Progress
from .progress import NodeProgress

EVENT = "streamcache.training"
SECONDS_BETWEEN = 0.25  # events
PICTURE_SHARE = 0.02  # of the time that may go into drawing the curve


class TrainWatch:
    """Hands what the loop tells to the host. Raises the host's interrupt between two steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = NodeProgress()
        self._losses: list[tuple[int, float]] = []
        self._samples: Image.Image | None = None
        self._told, self._drawn, self._cost = 0.0, time.monotonic(), 0.05
        self._at, self._steps = 0, 1

    def hooks(self) -> Hooks:
        return Hooks(progress=self.step, samples=self.samples)

    def step(self, progress: Progress) -> None:
        self._losses.append((progress.step, progress.loss))
        self._at, self._steps = progress.step, progress.steps
        self.node(progress.step, progress.steps, progress.line())
        now = time.monotonic()
        if now - self._told >= SECONDS_BETWEEN or progress.step == progress.steps:
            self._told = now
            self._send({**asdict(progress), "run": self.name})
        if now - self._drawn >= self._cost / PICTURE_SHARE:
            self._show()

    def samples(self, step: int, pictures: Sequence[Image.Image]) -> None:
        self._samples = draw_grid([list(pictures)], [f"step {step}"])
        self._show()

    def _show(self) -> None:
        """The curve, with the latest samples below it."""
        began = time.monotonic()
        parts = [plot_loss(self._losses, size=(512, 256))] if self._losses else []
        parts += [self._samples] if self._samples is not None else []
        if parts:
            self.node.preview(self._at, self._steps, _stack(parts))
        self._drawn = time.monotonic()
        self._cost = self._drawn - began

    def _send(self, facts: dict[str, Any]) -> None:
        server = getattr(PromptServer, "instance", None)
        if server is not None and server.client_id is not None and self.node.node_id is not None:
            server.send_sync(EVENT, {"node": self.node.node_id, **facts}, server.client_id)


def _stack(pictures: Sequence[Image.Image]) -> Image.Image:
    width = max(picture.width for picture in pictures)
    whole = Image.new("RGB", (width, sum(picture.height for picture in pictures)), "white")
    top = 0
    for picture in pictures:
        whole.paste(picture, ((width - picture.width) // 2, top))
        top += picture.height
    return whole
