"""Training: `train` steps to the end of a run, `train_in_run` also opens the run and puts the LoRA in its place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from ..dataset_cache import Dataset
from ..errors import TrainError
from .compute import attention_kernel
from .config import TrainConfig
from .data import Prefetcher, share_windows
from .denoiser import Denoiser
from .exporter import Exporter
from .memory import compiled, saving_memory
from .optimizers import set_rate
from .parts import digest, identity
from .ranks import ALONE, Ranks, check_same
from .report_page import write_report
from .run import (
    Events,
    LossEntry,
    LossLedger,
    MetricsFile,
    NoMetrics,
    NonFiniteLoss,
    Reporter,
    Run,
    TrainHooks,
    TrainResult,
    WatchRun,
    check_events,
    end_recorded,
    missing_exports,
    open_run_together,
    read_run_json,
    signals_held,
)
from .samples import Decode, Prompt, Sampler, make_sampler, remove_later_images
from .session import Session, open_session
from .step import check_calls

log = logging.getLogger("streamcache")


def train(
    denoiser: Denoiser,
    dataset: Dataset,
    config: TrainConfig,
    run: Run,
    out: Path | None = None,
    hooks: TrainHooks | None = None,
    decode: Decode | None = None,
    prompts: Sequence[Prompt] | None = None,
    ranks: Ranks = ALONE,
) -> TrainResult:
    """Train an adapter and save it to `out`, or into the run's folder.

    A stop, an error or an interrupt first saves the state after the last complete step, and the LoRA under a name with
    that step; `mode = "resume"` continues from there with the same result as an uninterrupted run. If the loss is nan,
    nothing is saved: the last good state stays. Of several ranks, all call it, and rank 0 writes.
    """
    watch: WatchRun = lambda run: nullcontext(hooks or TrainHooks())  # noqa: E731
    return _train(denoiser, dataset, config, run, out, watch, decode, prompts, ranks)


def train_in_run(
    denoiser: Denoiser,
    dataset: Dataset,
    config: TrainConfig,
    runs: Path,
    place: Callable[[Run], Path],
    watch: WatchRun,
    decode: Decode | None = None,
    prompts: Sequence[Prompt] | None = None,
    ranks: Ranks = ALONE,
) -> tuple[TrainResult, Run]:
    """Train in the run that `config` names, below the folder `runs`, and save the LoRA to `place(run)`.

    `watch` is called when all checks have passed and the run begins.
    """
    with open_run_together(runs, config.name, config.mode, ranks) as run:
        return _train(denoiser, dataset, config, run, place(run), watch, decode, prompts, ranks), run


def _train(
    denoiser: Denoiser,
    dataset: Dataset,
    config: TrainConfig,
    run: Run,
    out: Path | None,
    watch: WatchRun,
    decode: Decode | None,
    prompts: Sequence[Prompt] | None,
    ranks: Ranks,
) -> TrainResult:
    # ComfyUI runs nodes in inference mode, in which tensors cannot be trained.
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        with ranks.together():
            if config.tensorboard:
                check_events()
            session = open_session(denoiser, dataset, config, run, ranks)
            sampler = make_sampler(denoiser, dataset, config, run.samples, decode, prompts) if ranks.leads else None
            out = out or run.lora
            before = read_run_json(run.folder) if run.resume else {}
            exporter = Exporter(session, run, out)
        if ranks.size > 1:
            check_same(ranks, {**identity(session.stepper, dataset, config), "step": session.step})
        # All checks have passed. Nothing is written before this: a refused training leaves a run as it was.
        run.describe(
            **({} if run.resume else {"lora": ""}),
            status="running",
            config=config.to_dict(),
            dataset=str(dataset.path),
            dataset_id=dataset.id,
            dataset_generation=dataset.generation,
            step=session.step,
            steps=session.steps,
            problem="",
            notes="",
            **({"prompts": [prompt.caption for prompt in sampler.prompts]} if sampler else {}),
        )
        if ranks.leads:
            exporter.begin()
        with watch(run) as hooks, end_recorded(run, lambda: session.step, before):
            result = _run(session, run, exporter, hooks, sampler)
            run.describe(status="stopped" if result.stopped else "done", step=result.step)
        return result


def _run(session: Session, run: Run, exporter: Exporter, hooks: TrainHooks, sampler: Sampler | None) -> TrainResult:
    device, config, leads = session.denoiser.device, session.config, session.stepper.ranks.leads
    with ExitStack() as stack:
        metrics = MetricsFile(run.metrics, resume_at=session.step) if leads else NoMetrics(session.step)
        stack.enter_context(metrics)
        if leads:
            remove_later_images(run.samples, session.step)
        events = None
        if config.tensorboard and leads:
            events = stack.enter_context(Events(run.folder / "events", session.step))
        reporter = Reporter(metrics, session.steps, device, hooks.progress, events)
        stack.enter_context(session.attached())
        blocks = session.denoiser.blocks()
        stack.enter_context(compiled(blocks, run.warn) if config.compile else nullcontext())
        stack.enter_context(saving_memory(blocks, config.checkpointing, config.activation_offload))
        lora = _Loop(session, run, exporter, hooks, sampler, reporter, LossLedger(device)).run()
    reporter.end()
    ended = session.step, session.steps, lora, reporter.data_wait(), reporter.seconds(), session.step < session.steps
    exports = tuple(one.path for one in exporter.along)
    result = TrainResult(*ended, exports, tuple(missing_exports(run.folder)), session.dataset.traffic)
    if leads and (session.step > reporter.first or not run.report.exists()):
        _report(run, session, reporter, sampler)
    return result


def _report(run: Run, session: Session, reporter: Reporter, sampler: Sampler | None) -> None:
    """The report of a run whose LoRA is saved: if it cannot be written, the training has succeeded nevertheless."""
    try:
        write_report(run, session, reporter, [prompt.caption for prompt in sampler.prompts] if sampler else ())
    except (OSError, TrainError) as error:
        log.warning("The report of %s could not be written: %s", run.name, error)


@dataclass
class _Loop:
    """Steps through a session, with everything that is due between steps."""

    session: Session
    folder: Run
    exporter: Exporter
    hooks: TrainHooks
    sampler: Sampler | None
    reporter: Reporter
    ledger: LossLedger
    waited: float = 0.0  # seconds spent waiting for data
    changing: bool = False  # within an update: the weights are between two steps and must not be saved
    checked: bool = False  # whether the layers were checked in the first step
    sampled: bool = False  # whether they were checked in the first sample images

    def run(self) -> Path:
        """Train; returns the file of the LoRA. An error first saves the last complete step."""
        try:
            return self._train()
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"{error}{self.session.stepper.blame()}. {self._last_good()}") from None
        except BaseException as error:
            self.ranks.tell(error)
            if self.ranks.leads:
                self._rescue()
            raise

    @property
    def ranks(self) -> Ranks:
        return self.session.stepper.ranks

    def _train(self) -> Path:
        session, config = self.session, self.session.config
        if session.step < session.steps:
            self._look_if_due()  # at step 0, and after a kill between saving and looking
        left = (session.steps - session.step) * config.accumulate
        order, coming = (islice(session.order.walk(session.stepper.position), left) for _ in range(2))
        plans, coming = share_windows(order, config.accumulate, self.ranks), share_windows(coming, 1, self.ranks)
        rows, device, draw = session.order.largest, session.denoiser.device, session.stepper.draw
        with Prefetcher(session.dataset, plans, rows, config.prefetch, device, draw, coming) as loader:
            while session.step < session.steps and not self.ranks.any(self.hooks.stop()):
                self._step(loader)
                self._between_steps()
        self._report(self.ledger.drain())
        return self._finish()

    def _step(self, loader: Prefetcher) -> None:
        """One step. On the CPU, where that costs nothing, the loss is checked before it changes any weight."""
        session, stepper = self.session, self.session.stepper
        rate = set_rate(stepper.optimizer, session.config.curve(session.steps, session.rules).factor(session.step))
        session.network.forget_calls()
        with attention_kernel(session.config.attention):
            loss = stepper.backward(loader)
        self.waited = loader.waited
        if not self.checked and stepper.called:
            self.folder.warn(stepper.check_layers())
            self.checked = True
        ready = self.ledger.add(session.step + 1, stepper.epoch, rate, loss, stepper.rows, stepper.clip())
        with signals_held():
            self.changing = True
            stepper.update()
            session.step += 1
            self.changing = False
        self._report(ready)

    def _report(self, ready: list[tuple[LossEntry, float]]) -> None:
        for at, loss in ready:
            traffic = self.session.dataset.traffic
            self.reporter.step(at.step, at.epoch, loss, at.rate, self.waited, at.rows, at.gradient_norm, traffic)

    def _between_steps(self) -> None:
        """Save, validate and draw samples if due. After the last step, `_finish` does."""
        session, config = self.session, self.session.config
        if session.step == session.steps:
            return
        if config.save_every and session.step % config.save_every == 0:
            self._save()
        self._look_if_due()

    def _look_if_due(self) -> None:
        session, config = self.session, self.session.config
        if session.step % config.validation_every == 0:
            self._validate()
        if config.sample_every and session.step % config.sample_every == 0:
            self._draw_samples()
        if self.exporter.is_due(session.step) and self.ranks.from_first(self.exporter.is_missing()):
            self._export_along()

    def _finish(self) -> Path:
        session = self.session
        self._save()
        self._validate()
        self._draw_samples()
        return self._export_last(finished=session.step == session.steps)

    def _export_along(self) -> None:
        self._validate()
        with self._paused():
            self._report(self.ledger.drain())
            written = self.exporter.write_along(*self._measured()) if self.ranks.leads else None
        if written is not None and self.hooks.exported is not None:
            self.hooks.exported(written)

    def _export_last(self, finished: bool) -> Path:
        with self._paused():
            return self.exporter.write_last(finished, *self._measured()) if self.ranks.leads else self.exporter.final

    def _measured(self) -> tuple[float | None, float | None]:
        return self.reporter.smooth, self.reporter.validation_at(self.session.step)

    def _save(self, compare: bool = True) -> None:
        """Save a state. Pending losses are checked first: a state after a nan would be useless."""
        with self._paused():
            self._report(self.ledger.drain())
            self.reporter.sync()
            if compare and self.ranks.size > 1:
                weights = digest(self.session.network.tensors().values())
                check_same(self.ranks, {f"after step {self.session.step}, the digest of the weights": weights})
            self.session.save()

    def _validate(self) -> None:
        known = self.reporter.is_validated(self.session.step)
        if self.session.validation is None or self.ranks.from_first(known):
            return
        with self._paused():
            loss = self.session.measure()
            if loss is not None:
                self.reporter.validation(self.session.step, loss)
        if loss is not None and self.hooks.validation is not None:
            self.hooks.validation(self.session.step, loss)

    def _draw_samples(self) -> None:
        if self.sampler is None or self.sampler.has_drawn(self.session.step):
            return
        self.session.network.forget_calls()
        with self._paused(), self.session.as_saved():
            images = self.sampler.draw(self.session.step)
        if not self.sampled:
            check_calls(self.session.network, "for sample images")
            self.sampled = True
        if self.hooks.samples is not None:
            self.hooks.samples(self.session.step, images)

    def _rescue(self) -> None:
        """Save the last complete step while an error or interrupt is raised; a second error does not hide the first."""
        if self.changing:
            log.warning("Stopped during an update; %s", self._last_good())
            return
        if self.session.step == self.reporter.first:
            return  # nothing is trained yet, or nothing since the resume
        try:
            self._save(compare=False)
            self._export_last(finished=False)
        except Exception as error:
            log.warning("The state of step %d could not be saved: %s", self.session.step, error)

    def _last_good(self) -> str:
        files = self.session.states.files()
        return f"The last good state is {files[-1]}" if files else "No state has been saved yet"

    @contextmanager
    def _paused(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.reporter.paused += time.perf_counter() - began
