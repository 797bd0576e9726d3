"""Watching a training: bar, text, pictures and events, live on its node and on all pages; and how it is stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from ..lora_train import Run, TrainHooks, TrainProgress, draw_grid, plot_loss, read_run_json, sample_file_name
from .host.app import NodeProgress, current_client, send_event
from .server import RUNS, LiveRun, sample_mtime, thin

EVENT = "streamcache.training"
SAMPLE_EVENT = "streamcache.sample"
SECONDS_BETWEEN = 0.25  # events
POINTS = 40  # losses in one event: every step that it stands for, or the peaks of very many
PICTURE_SHARE = 0.02  # of the time that may go into drawing the curve


class TrainWatch:
    """Hands what the loop tells to the host. Raises the host's interrupt between two steps."""

    def __init__(self) -> None:
        self.node = NodeProgress()
        self.notes: list[str] = []  # what people should know of the dataset
        self.live = LiveRun("", self.node.node_id, current_client())
        self._losses: list[tuple[int, float]] = []
        self._samples: Image.Image | None = None
        self._folder = Path()  # where samples are kept
        self._sent = 0  # losses that events have told
        self._told, self._drawn, self._cost = 0.0, time.monotonic(), 0.05
        self._at, self._steps = 0, 1

    @contextmanager
    def running(self, run: Run) -> Iterator[TrainHooks]:
        """While a run trains: it is listed as live, and every page hears how it begins and ends."""
        self.live.name, self._folder = run.name, run.samples
        run.describe(notes="\n".join(self.notes))
        try:
            with RUNS.running(self.live):
                self._tell({"step": 0})
                yield self.hooks()
        finally:
            self._end(run)  # when it is no longer listed as live: pages ask at once how it ended

    def hooks(self) -> TrainHooks:
        return TrainHooks(
            progress=self.step, samples=self.samples, validation=self.validation, stop=self.live.stop.is_set
        )

    def step(self, progress: TrainProgress) -> None:
        self._losses.append((progress.step, progress.loss))
        self.live.update(progress)
        self._at, self._steps = progress.step, progress.steps
        self.node(progress.step, progress.steps, progress.line())
        now = time.monotonic()
        if now - self._told >= SECONDS_BETWEEN or progress.step == progress.steps:
            self._told = now
            self._tell({**self.live.to_json(), "points": self._new_points()})
        if now - self._drawn >= self._cost / PICTURE_SHARE:
            self._show()

    def validation(self, step: int, loss: float) -> None:
        self._tell({"validation": [step, loss]})

    def samples(self, step: int, pictures: Sequence[Image.Image]) -> None:
        for number in range(len(pictures)):
            file = sample_file_name(step, number)
            facts = {"step": step, "prompt": number, "file": file, "mtime": sample_mtime(self._folder / file)}
            send_event(SAMPLE_EVENT, {"run": self.live.name, **facts})
        self._samples = draw_grid([list(pictures)], [f"step {step}"])
        self._show()

    def _new_points(self) -> list[list[float]]:
        new, self._sent = self._losses[self._sent :], len(self._losses)
        return thin([step for step, _ in new], [loss for _, loss in new], POINTS)

    def _show(self) -> None:
        """The curve, with the latest samples below it: for pages and programs that draw none themselves."""
        began = time.monotonic()
        parts = [plot_loss(self._losses, size=(512, 256))] if self._losses else []
        parts += [self._samples] if self._samples is not None else []
        if parts:
            self.node.preview(self._at, self._steps, _stack(parts))
        self._drawn = time.monotonic()
        self._cost = self._drawn - began

    def _end(self, run: Run) -> None:
        told = read_run_json(run.folder)
        facts = {name: told[name] for name in ("status", "step", "steps", "problem") if name in told}
        if facts.get("status") == "running":
            facts["status"] = "interrupted"  # nobody came to write how it ended
        self._send({"status": "failed", **facts, "live": False, "points": self._new_points()})

    def _tell(self, facts: dict[str, Any]) -> None:
        self._send({**facts, "status": "running", "live": True})

    def _send(self, facts: dict[str, Any]) -> None:
        # Only whoever queued the workflow hears of the node: ids of another's canvas mean other nodes.
        send_event(EVENT, {**facts, "run": self.live.name}, self.live.client, {"node": self.live.node})


def _stack(pictures: Sequence[Image.Image]) -> Image.Image:
    width = max(picture.width for picture in pictures)
    whole = Image.new("RGB", (width, sum(picture.height for picture in pictures)), "white")
    top = 0
    for picture in pictures:
        whole.paste(picture, ((width - picture.width) // 2, top))
        top += picture.height
    return whole
