"""The training loop: steps through a session, reports, and keeps what was trained whatever happens."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..dataset_cache import CacheError
from .config import TrainConfig
from .data import Prefetcher
from .denoiser import Denoiser
from .errors import TrainError
from .memory import checkpointed
from .optim import set_rate
from .report_page import write_report
from .run import MetricsFile, Reporter, Run, TrainProgress, open_events, open_run, read_run_json
from .samples import Decode, Prompt, Sampler, drop_later, find_prompts
from .session import Session, open_session
from .step import LossEntry, LossLedger, NonFiniteLoss, share_windows

SAMPLES_A_RUN = 8  # pictures over the run where a VAE is given and no interval

log = logging.getLogger("streamcache")

MAX_PROBLEM = 500  # characters of an error that a run keeps


@dataclass(frozen=True)
class TrainHooks:
    """Who wants to know, and who may stop the run. All are called between steps, from the training thread."""

    progress: Callable[[TrainProgress], None] | None = None
    samples: Callable[[int, Sequence[Image.Image]], None] | None = None
    validation: Callable[[int, float], None] | None = None
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    step: int
    steps: int
    lora: Path
    data_wait: float  # share of the training time
    seconds: float
    stopped: bool = False


# Who looks on is told the run that was opened, and is there until the run has ended.
WatchRun = Callable[[Run], AbstractContextManager[TrainHooks]]


def train(
    denoiser: Denoiser,
    dataset: Any,
    config: TrainConfig,
    run: Run,
    out: Path | None = None,
    hooks: TrainHooks | None = None,
    decode: Decode | None = None,
    prompts: Sequence[Prompt] | None = None,
) -> TrainResult:
    """Train an adapter and save it to `out`, or into the run's folder.

    A stop, an error or an interrupt first saves the state of the last whole step; `mode = "resume"` goes on from there
    as if nothing had happened. Only a loss that is no number saves nothing: the last good state stays.
    """
    # The host runs nodes under inference mode, whose tensors cannot be trained on.
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        with _explained(run):
            session = open_session(denoiser, dataset, config, run)
            sampler = _make_sampler(session, run, decode, prompts)
        run.describe(
            status="running",
            config=config.to_dict(),
            dataset=str(dataset.path),
            dataset_id=dataset.id,
            steps=session.steps,
            problem="",
        )
        loop = _Loop(session, run, out or run.lora, hooks or TrainHooks(), sampler)
        try:
            result = loop.run()
        except Exception as error:
            run.describe(status="failed", step=session.step, problem=_words(error))
            raise
        except BaseException:
            run.describe(status="interrupted", step=session.step)
            raise
        run.describe(status="stopped" if result.stopped else "done", step=result.step)
        return result


@dataclass
class _Loop:
    session: Session
    folder: Run
    out: Path
    hooks: TrainHooks
    sampler: Sampler | None
    changing: bool = field(default=False, init=False)  # between two whole steps: not to be saved

    def run(self) -> TrainResult:
        session, config = self.session, self.session.config
        self.ledger = LossLedger(session.denoiser.device)
        with ExitStack() as stack:
            metrics = stack.enter_context(MetricsFile(self.folder.metrics, resume_at=session.step))
            drop_later(self.folder.samples, session.step)
            events = stack.enter_context(open_events(self.folder.folder / "events")) if config.tensorboard else None
            self.reporter = Reporter(metrics, session.steps, session.denoiser.device, self.hooks.progress, events)
            stack.enter_context(session.network.attached(session.denoiser.adaptable()))
            if config.checkpointing:
                stack.enter_context(checkpointed(session.denoiser.blocks()))
            try:
                stopped = self._train()
            except NonFiniteLoss as error:
                raise NonFiniteLoss(f"{error}. {self._last_good()}") from None
            except BaseException:
                self._rescue()
                raise
        result = TrainResult(
            session.step, session.steps, self.out, self.reporter.data_wait(), self.reporter.seconds(), stopped
        )
        write_report(self.folder, session, self.reporter)
        return result

    def _train(self) -> bool:
        """Step to the end, or until a stop is asked for; returns whether it was."""
        session, config = self.session, self.session.config
        if session.step == 0:
            self._measure()
            self._draw()
        plans = share_windows(session.order.walk(session.stepper.position), config.accumulate)
        rows, device, draw = session.order.largest, session.denoiser.device, session.stepper.draw
        with Prefetcher(session.dataset, plans, rows, config.prefetch, device, draw) as loader:
            self.loader = loader
            while session.step < session.steps:
                if self.hooks.stop():
                    break
                self._step()
                self._between()
        for entry in self.ledger.drain():
            self._report(*entry)
        self._finish()
        return session.step < session.steps

    def _step(self) -> None:
        """One step. A loss is looked at before it changes any weight, where that costs nothing (on the CPU)."""
        session, stepper = self.session, self.session.stepper
        rate = set_rate(stepper.optimizer, session.config.curve(session.steps).factor(session.step))
        loss = stepper.backward(self.loader)
        ready = self.ledger.add(session.step + 1, stepper.epoch, rate, loss, stepper.rows)
        self.changing = True
        stepper.update()
        session.step += 1
        self.changing = False
        for entry in ready:
            self._report(*entry)

    def _report(self, entry: LossEntry, loss: float) -> None:
        self.reporter.step(entry.step, entry.epoch, loss, entry.rate, self.loader.waited, entry.rows)

    def _between(self) -> None:
        """What is due after this step; the last step's turn comes in `_finish`."""
        session, config = self.session, self.session.config
        if session.step == session.steps:
            return
        if config.save_every and session.step % config.save_every == 0:
            self._save()
        if session.step % config.validation_every == 0:
            self._measure()
        if config.sample_every and session.step % config.sample_every == 0:
            self._draw()

    def _finish(self) -> None:
        self._save()
        self._measure()
        self._draw()
        with self._pause():
            self.session.export(self.out)

    def _save(self) -> None:
        """Losses on their way are looked at first: a state after a bad one would not be good."""
        with self._pause():
            for entry in self.ledger.drain():
                self._report(*entry)
            self.reporter.flush()
            self.session.save()

    def _measure(self) -> None:
        with self._pause():
            loss = self.session.measure()
            if loss is not None:
                self.reporter.validation(self.session.step, loss)
        if loss is not None and self.hooks.validation is not None:
            self.hooks.validation(self.session.step, loss)

    def _draw(self) -> None:
        if self.sampler is None:
            return
        with self._pause(), self.session.at_rest():
            pictures = self.sampler.draw(self.session.step)
        if self.hooks.samples is not None:
            self.hooks.samples(self.session.step, pictures)

    def _rescue(self) -> None:
        """Save what was trained before an error or interrupt goes on its way; that one is not hidden by another."""
        if self.changing:
            log.warning("Stopped within an update; %s", self._last_good())
            return
        try:
            self._save()
            self.session.export(self.folder.lora)
        except Exception as error:
            log.warning("The state of step %d could not be kept: %s", self.session.step, error)

    def _last_good(self) -> str:
        files = self.session.states.files()
        return f"The last good state is {files[-1]}" if files else "No state had been saved yet"

    @contextmanager
    def _pause(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.reporter.paused += time.perf_counter() - began


@contextmanager
def _explained(run: Run) -> Iterator[None]:
    """A new run that cannot begin keeps the reason; one that was there before stays as it is."""
    try:
        yield
    except Exception as error:
        if "status" not in read_run_json(run.folder):
            run.describe(problem=_words(error))
        raise


def _words(error: Exception) -> str:
    """What went wrong. The pack's own errors are sentences; of others the kind says as much as the words."""
    own = isinstance(error, (TrainError, CacheError))
    return (str(error) if own else f"{type(error).__name__}: {error}")[:MAX_PROBLEM]


def _make_sampler(
    session: Session, run: Run, decode: Decode | None, prompts: Sequence[Prompt] | None
) -> Sampler | None:
    config = session.config
    if not config.sample_every:
        return None
    if decode is None:
        raise TrainError(
            f"sample_every = {config.sample_every}: pictures need a VAE to decode them; give one, or set 0"
        )
    prompts = prompts or find_prompts(session.dataset, config.sample_captions)
    return Sampler(session.denoiser, prompts, decode, run.samples, config.sample_seed, config.sample_steps)


def train_in_run(
    denoiser: Denoiser,
    dataset: Any,
    config: TrainConfig,
    runs: Path,
    place: Callable[[Run], Path],
    watch: WatchRun,
    decode: Decode | None = None,
    prompts: Sequence[Prompt] | None = None,
) -> tuple[TrainResult, Run]:
    """Train in the run that `config` names, in the folder `runs`; the LoRA is in its `place` also after an error."""
    with open_run(runs, config.name, config.mode) as run:
        out = place(run)
        with watch(run) as hooks, _kept(run, out):
            return train(denoiser, dataset, config, run, out, hooks, decode, prompts), run


def with_sample_images(config: TrainConfig) -> TrainConfig:
    """For whoever gives a VAE: pictures at an interval, also where none is set."""
    if config.sample_every:
        return config
    steps = config.steps if not config.epochs else SAMPLES_A_RUN * 200
    return replace(config, sample_every=max(steps // SAMPLES_A_RUN, 1))


@contextmanager
def _kept(run: Run, out: Path) -> Iterator[None]:
    """Whatever ends the training, what it has saved in its folder is put where its LoRA is looked for."""
    before = _state(run.lora)
    try:
        yield
    except BaseException:
        if _state(run.lora) not in (None, before):
            out.parent.mkdir(parents=True, exist_ok=True)
            part = out.with_suffix(".part")
            shutil.copyfile(run.lora, part)
            os.replace(part, out)
        raise


def _state(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
