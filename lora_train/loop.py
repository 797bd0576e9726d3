"""Training: `train` steps to the end of a run, `train_in_run` also opens the run and puts the LoRA in its place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image

from ..dataset_cache import CacheError, Dataset, replace_file
from .config import TrainConfig
from .data import Prefetcher
from .denoiser import Denoiser
from .errors import TrainError
from .memory import checkpointed
from .optim import set_rate
from .report_page import write_report
from .run import MetricsFile, Reporter, Run, TrainProgress, open_events, open_run, read_run_json
from .samples import Decode, Prompt, Sampler, find_prompts, remove_later_images
from .session import Session, open_session
from .step import LossEntry, LossLedger, NonFiniteLoss, share_windows

log = logging.getLogger("streamcache")

MAX_PROBLEM = 500  # characters of an error that are stored in run.json
SAMPLE_TIMES = 8  # sample images per run if a VAE is given and no interval


@dataclass(frozen=True)
class TrainHooks:
    """Callbacks, called between steps from the training thread; training stops when `stop` returns True."""

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


# Called with the opened run; its hooks are used until the run ends.
WatchRun = Callable[[Run], AbstractContextManager[TrainHooks]]


def train(
    denoiser: Denoiser,
    dataset: Dataset,
    config: TrainConfig,
    run: Run,
    out: Path | None = None,
    hooks: TrainHooks | None = None,
    decode: Decode | None = None,
    prompts: Sequence[Prompt] | None = None,
) -> TrainResult:
    """Train an adapter and save it to `out`, or into the run's folder.

    A stop, an error or an interrupt first saves the state after the last complete step; `mode = "resume"` continues
    from there with the same result as an uninterrupted run. If the loss is nan, nothing is saved: the last good state
    stays.
    """
    # ComfyUI runs nodes in inference mode, in which tensors cannot be trained.
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        with _problem_recorded(run):
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
        try:
            result = _run(session, run, out or run.lora, hooks or TrainHooks(), sampler)
        except Exception as error:
            run.describe(status="failed", step=session.step, problem=_message(error))
            raise
        except BaseException:
            run.describe(status="interrupted", step=session.step)
            raise
        run.describe(status="stopped" if result.stopped else "done", step=result.step)
        return result


def train_in_run(
    denoiser: Denoiser,
    dataset: Dataset,
    config: TrainConfig,
    runs: Path,
    place: Callable[[Run], Path],
    watch: WatchRun,
    decode: Decode | None = None,
    prompts: Sequence[Prompt] | None = None,
) -> tuple[TrainResult, Run]:
    """Train in the run that `config` names, below the folder `runs`, and save the LoRA to `place(run)`.

    After an error or interrupt, the LoRA trained so far is saved there too.
    """
    with open_run(runs, config.name, config.mode) as run:
        out = place(run)
        with watch(run) as hooks, _rescued_lora_copied(run, out):
            return train(denoiser, dataset, config, run, out, hooks, decode, prompts), run


def with_sample_images(config: TrainConfig) -> TrainConfig:
    """The same settings with an interval for sample images, if none is set. For callers that have a VAE."""
    if config.sample_every:
        return config
    steps = config.steps if not config.epochs else SAMPLE_TIMES * 200
    return replace(config, sample_every=max(steps // SAMPLE_TIMES, 1))


def _run(session: Session, run: Run, out: Path, hooks: TrainHooks, sampler: Sampler | None) -> TrainResult:
    device, config = session.denoiser.device, session.config
    with ExitStack() as stack:
        metrics = stack.enter_context(MetricsFile(run.metrics, resume_at=session.step))
        remove_later_images(run.samples, session.step)
        events = stack.enter_context(open_events(run.folder / "events")) if config.tensorboard else None
        reporter = Reporter(metrics, session.steps, device, hooks.progress, events)
        stack.enter_context(session.network.attached(session.denoiser.adaptable()))
        if config.checkpointing:
            stack.enter_context(checkpointed(session.denoiser.blocks()))
        stopped = _Loop(session, run, out, hooks, sampler, reporter, LossLedger(device)).run()
    result = TrainResult(session.step, session.steps, out, reporter.data_wait(), reporter.seconds(), stopped)
    write_report(run, session, reporter)
    return result


@dataclass
class _Loop:
    """Steps through a session, with everything that is due between steps."""

    session: Session
    folder: Run
    out: Path
    hooks: TrainHooks
    sampler: Sampler | None
    reporter: Reporter
    ledger: LossLedger
    waited: float = 0.0  # seconds spent waiting for data
    changing: bool = False  # within an update: the weights are between two steps and must not be saved

    def run(self) -> bool:
        """Train; returns whether the run was stopped before its end. An error first saves the last complete step."""
        try:
            return self._train()
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"{error}. {self._last_good()}") from None
        except BaseException:
            self._rescue()
            raise

    def _train(self) -> bool:
        session, config = self.session, self.session.config
        if session.step == 0:
            self._validate()
            self._draw_samples()
        plans = share_windows(session.order.walk(session.stepper.position), config.accumulate)
        rows, device, draw = session.order.largest, session.denoiser.device, session.stepper.draw
        with Prefetcher(session.dataset, plans, rows, config.prefetch, device, draw) as loader:
            while session.step < session.steps and not self.hooks.stop():
                self._step(loader)
                self._between_steps()
        self._report(self.ledger.drain())
        self._finish()
        return session.step < session.steps

    def _step(self, loader: Prefetcher) -> None:
        """One step. On the CPU, where that costs nothing, the loss is checked before it changes any weight."""
        session, stepper = self.session, self.session.stepper
        rate = set_rate(stepper.optimizer, session.config.curve(session.steps).factor(session.step))
        loss = stepper.backward(loader)
        self.waited = loader.waited
        ready = self.ledger.add(session.step + 1, stepper.epoch, rate, loss, stepper.rows)
        self.changing = True
        stepper.update()
        session.step += 1
        self.changing = False
        self._report(ready)

    def _report(self, ready: list[tuple[LossEntry, float]]) -> None:
        for entry, loss in ready:
            self.reporter.step(entry.step, entry.epoch, loss, entry.rate, self.waited, entry.rows)

    def _between_steps(self) -> None:
        """Save, validate and draw samples if due. After the last step, `_finish` does."""
        session, config = self.session, self.session.config
        if session.step == session.steps:
            return
        if config.save_every and session.step % config.save_every == 0:
            self._save()
        if session.step % config.validation_every == 0:
            self._validate()
        if config.sample_every and session.step % config.sample_every == 0:
            self._draw_samples()

    def _finish(self) -> None:
        self._save()
        self._validate()
        self._draw_samples()
        with self._paused():
            self.session.export(self.out)

    def _save(self) -> None:
        """Save a state. Pending losses are checked first: a state after a nan would be useless."""
        with self._paused():
            self._report(self.ledger.drain())
            self.reporter.flush()
            self.session.save()

    def _validate(self) -> None:
        with self._paused():
            loss = self.session.measure()
            if loss is not None:
                self.reporter.validation(self.session.step, loss)
        if loss is not None and self.hooks.validation is not None:
            self.hooks.validation(self.session.step, loss)

    def _draw_samples(self) -> None:
        if self.sampler is None:
            return
        with self._paused(), self.session.at_rest():
            images = self.sampler.draw(self.session.step)
        if self.hooks.samples is not None:
            self.hooks.samples(self.session.step, images)

    def _rescue(self) -> None:
        """Save the last complete step while an error or interrupt is raised; a second error does not hide the first."""
        if self.changing:
            log.warning("Stopped during an update; %s", self._last_good())
            return
        try:
            self._save()
            self.session.export(self.folder.lora)
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


@contextmanager
def _problem_recorded(run: Run) -> Iterator[None]:
    """Store in run.json why a new run cannot start; the run.json of an older run is not changed."""
    try:
        yield
    except Exception as error:
        if "status" not in read_run_json(run.folder):
            run.describe(problem=_message(error))
        raise


def _message(error: Exception) -> str:
    """The error's message; errors that are not the pack's own get their type in front."""
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
            f"sample_every = {config.sample_every}: sample images need a VAE; connect one, or set sample_every = 0"
        )
    prompts = prompts or find_prompts(session.dataset, config.sample_captions)
    return Sampler(session.denoiser, prompts, decode, run.samples, config.sample_seed, config.sample_steps)


@contextmanager
def _rescued_lora_copied(run: Run, out: Path) -> Iterator[None]:
    """If the training fails, copy the LoRA that was rescued into the run's folder to where it is expected."""
    before = _stamp(run.lora)
    try:
        yield
    except BaseException:
        if _stamp(run.lora) not in (None, before):
            out.parent.mkdir(parents=True, exist_ok=True)
            replace_file(out, run.lora.read_bytes())
        raise


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
