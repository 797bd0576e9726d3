"""A running training on its node and on all pages: progress bar, text, preview image, events and stopping."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from ...dataset_cache import CacheError, Dataset
from ...lora_train import (
    Denoiser,
    Export,
    Run,
    TrainConfig,
    TrainError,
    TrainHooks,
    TrainProgress,
    WatchRun,
    draw_grid,
    plot_loss,
    read_run_json,
    report_memory,
    sample_file_name,
)
from ..host.app import NodeProgress, current_client, send_event
from ..server import RUNS, LiveRun, sample_mtime, thin_points

log = logging.getLogger("streamcache")

EVENT = "streamcache.training"
SAMPLE_EVENT = "streamcache.sample"
SECONDS_BETWEEN = 0.25  # events
POINTS = 40  # losses per event: every step since the last one, or the peaks if there are more
DRAWING_SHARE = 0.02  # of the time may be spent on drawing the curve


class TrainWatch:
    """Passes the progress of the training loop to ComfyUI. Raises ComfyUI's interrupt between two steps."""

    def __init__(self, host: Mapping[str, Any] | None = None) -> None:
        self.host = dict(host or {})  # ComfyUI's own settings, which are in run.json beside the trainer's
        self.node = NodeProgress()
        self.notes: list[str] = []  # remarks on the dataset, for the user
        self.live = LiveRun("", self.node.node_id, current_client())
        self._losses: list[tuple[int, float]] = []
        self._samples: Image.Image | None = None
        self._folder = Path()  # of the sample images
        self._sent = 0  # number of losses sent in events
        self._sent_at, self._drawn_at, self._cost = 0.0, time.monotonic(), 0.05
        self._at, self._steps = 0, 1

    @contextmanager
    def running(self, run: Run) -> Iterator[TrainHooks]:
        """While a run trains, it is listed as live. Every page gets an event when it starts and when it ends."""
        self.live.name, self._folder = run.name, run.samples
        run.describe(notes="\n".join(self.notes), host=self.host)
        try:
            with RUNS.running(self.live):
                self._send_running({"step": read_run_json(run.folder).get("step", 0)})
                yield self.hooks()
        finally:
            self._end(run)  # after it is no longer listed as live: pages immediately ask how it ended

    def hooks(self) -> TrainHooks:
        return TrainHooks(
            progress=self.step,
            samples=self.samples,
            validation=self.validation,
            stop=self.live.stop.is_set,
            exported=self.exported,
        )

    def step(self, progress: TrainProgress) -> None:
        self._losses.append((progress.step, progress.loss))
        self.live.update(progress)
        self._at, self._steps = progress.step, progress.steps
        self.node(progress.step, progress.steps, progress.line())
        now = time.monotonic()
        if now - self._sent_at >= SECONDS_BETWEEN or progress.step == progress.steps:
            self._sent_at = now
            self._send_running({**self.live.to_json(), "points": self._new_points()})
        if now - self._drawn_at >= self._cost / DRAWING_SHARE:
            self._show()

    def validation(self, step: int, loss: float) -> None:
        self._send_running({"validation": [step, loss]})

    def exported(self, export: Export) -> None:
        self._send_running({"exported": export.path.name})

    def samples(self, step: int, images: Sequence[Image.Image]) -> None:
        for number in range(len(images)):
            file = sample_file_name(step, number)
            facts = {"step": step, "prompt": number, "file": file, "mtime": sample_mtime(self._folder / file)}
            send_event(SAMPLE_EVENT, {"run": self.live.name, **facts})
        self._samples = draw_grid([list(images)], [f"step {step}"])
        self._show()

    def _new_points(self) -> list[list[float]]:
        new, self._sent = self._losses[self._sent :], len(self._losses)
        return thin_points([step for step, _ in new], [loss for _, loss in new], POINTS)

    def _show(self) -> None:
        """The loss curve with the latest samples below it, for front ends that do not draw them themselves."""
        began = time.monotonic()
        parts = [plot_loss(self._losses, size=(512, 256))] if self._losses else []
        parts += [self._samples] if self._samples is not None else []
        if parts:
            self.node.preview(self._at, self._steps, _stack(parts))
        self._drawn_at = time.monotonic()
        self._cost = self._drawn_at - began

    def _end(self, run: Run) -> None:
        try:
            recorded = read_run_json(run.folder)
        except TrainError:  # it does not hide how the run ended
            recorded = {}
        facts = {name: recorded[name] for name in ("status", "step", "steps", "problem") if name in recorded}
        if facts.get("status") == "running":
            facts["status"] = "interrupted"  # the run ended without recording how
        self._send({"status": "failed", **facts, "live": False, "points": self._new_points()})

    def _send_running(self, facts: dict[str, Any]) -> None:
        self._send({**facts, "status": "running", "live": True})

    def _send(self, facts: dict[str, Any]) -> None:
        # Only the page that queued the workflow gets the node id: on another canvas it is a different node.
        send_event(EVENT, {**facts, "run": self.live.name}, self.live.client, {"node": self.live.node})


def with_forecast(watch: WatchRun, denoiser: Denoiser, dataset: Dataset, config: TrainConfig) -> WatchRun:
    """The same watch for a run that begins with its memory forecast: in the log, on the node and in run.json.

    What does not fit is noted and trains nevertheless: ComfyUI may still make room.
    """
    node = NodeProgress()
    node.show("Computing how much memory the training needs")
    try:
        memory = report_memory(denoiser, dataset, config)
    except (TrainError, CacheError):  # the training raises it too, at its own place
        return watch
    words = "\n".join(memory.lines())
    log.log(logging.INFO if memory.fits and memory.forecast else logging.WARNING, words)
    node.show(words)

    @contextmanager
    def running(run: Run) -> Iterator[TrainHooks]:
        with watch(run) as hooks:
            run.describe(memory=memory.to_json())
            if not memory.fits or memory.forecast is None:
                run.note(words)
            yield hooks

    return running


def _stack(images: Sequence[Image.Image]) -> Image.Image:
    width = max(image.width for image in images)
    sheet = Image.new("RGB", (width, sum(image.height for image in images)), "white")
    top = 0
    for image in images:
        sheet.paste(image, ((width - image.width) // 2, top))
        top += image.height
    return sheet
