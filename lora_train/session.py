"""A training session: the parts of a run, built from dataset, model, settings and the saved state if it resumes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch

from ..dataset_cache import Dataset, Plan, Samples, open_cache
from ..errors import TrainError
from . import export
from .adapters import Network
from .compute import attention_kernel, check_attention
from .config import TrainConfig
from .data import Order, SetRule, TagCounts, count_tags, read_columns, refuse_plan
from .denoiser import Denoiser, Naming
from .memory import choose_precision
from .objective import RULES, ObjectiveSettings
from .optimizers import set_mode
from .other_captions import check_caption
from .parts import check_parts, check_room, make_network, make_stepper, store_blank
from .ranks import ALONE, Ranks
from .run import (
    NonFiniteLoss,
    Run,
    SavedState,
    StateFolder,
    StateOrigin,
    check_events,
    check_origin,
    resumed_position,
    signals_held,
)
from .samples import Decode, check_samples
from .step import Stepper
from .validation import HeldOut, Validation, hold_out

log = logging.getLogger("streamcache")


@dataclass
class Session:
    """The parts of a run; it can be validated, saved and exported."""

    denoiser: Denoiser
    dataset: Dataset
    config: TrainConfig
    order: Order
    stepper: Stepper
    states: StateFolder
    steps: int
    step: int = 0
    validation: Validation | None = None
    rules: int = RULES  # of timesteps, weights and warmup; a resumed run keeps its own
    _training_adapter: ExitStack = field(default_factory=ExitStack)  # its hooks, while they are on
    _tags: TagCounts | None = None
    saved: int | None = None  # the step of the last saved state, also of the one that the run resumed from

    @property
    def network(self) -> Network:
        return self.stepper.network

    def count_tags(self) -> TagCounts | None:
        """The tags of the dataset, which are counted once; None if the LoRA file shall not have them."""
        if self._tags is None and self.config.tag_statistics:
            self._tags = count_tags(self.dataset)
        return self._tags

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Weights as for inference: averaged with EMA, without dropout. Afterwards they are restored bit for bit."""
        own = [parameter.detach().clone() for parameter in self.network.parameters()]
        try:
            self.network.eval()
            set_mode(self.stepper.optimizer, training=False)
            if self.stepper.ema is None:
                yield
            else:
                with self.stepper.ema.applied():
                    yield
        finally:
            with signals_held(), torch.no_grad():
                set_mode(self.stepper.optimizer, training=True)
                self.network.train()
                for parameter, value in zip(self.network.parameters(), own):
                    parameter.copy_(value)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Inside the `with`, the adapters are on the model's layers: those that train, and the training adapter."""
        layers = self.denoiser.adaptable()
        with self.network.attached(layers), ExitStack() as self._training_adapter:
            self._attach_training_adapter()
            yield

    @contextmanager
    def as_saved(self) -> Iterator[None]:
        """The model with the adapter as the file will have it: at rest, and without the training adapter."""
        with self.at_rest():
            # Taken off, not silenced: a layer without hooks is called as the host calls it.
            self._training_adapter.close()
            try:
                yield
            finally:
                self._attach_training_adapter()

    def _attach_training_adapter(self) -> None:
        adapter = self.stepper.training_adapter
        if adapter is not None:
            # Always before the other adapters: a sum in another order would not be the same, bit for bit.
            self._training_adapter.enter_context(adapter.attached(self.denoiser.adaptable(), first=True))

    def measure(self) -> float | None:
        """The validation loss, or None if no samples are held out, or if it is nan or infinite."""
        if self.validation is None:
            return None
        with self.at_rest(), attention_kernel(self.config.attention):
            loss = self.validation.measure(self.denoiser, self.stepper.precision, self.stepper.ranks)
        if math.isfinite(loss):
            return loss
        log.warning("Step %d: the validation loss is %s and is left out", self.step, loss)
        return None

    def save(self) -> None:
        """Save the state after the last complete step, unless it is saved already. Refused if a weight is nan."""
        if self.saved == self.step:
            return
        self._refuse_bad_weights()
        if self.stepper.ranks.leads:
            self.states.save(self._state())
        self.saved = self.step

    def _state(self) -> SavedState:
        stepper = self.stepper
        return SavedState(
            step=self.step,
            position=stepper.position,
            epoch_length=len(self.order),
            origin=StateOrigin(self.dataset.id, self.dataset.generation, self.config.to_dict()),
            adapter=self.network.tensors(),
            carried=self.network.carried,
            optimizer=stepper.optimizer.state_dict(),
            ema=stepper.ema.tensors() if stepper.ema else {},
            scaler=stepper.scaler.state_dict(),
            rules=self.rules,
        )

    def export(self, path: Path, partial: str = "") -> Path:
        """Write the adapter as a LoRA file. `partial` says how far the run has come, if it was interrupted."""
        self._refuse_bad_weights()
        config, statistics = self.config, self.count_tags()
        facts = {
            "dataset_id": self.dataset.id,
            "dataset_generation": self.dataset.generation,
            "steps": self.step,
            "epoch": self.stepper.epoch,
            "seed": config.seed,
            "learning_rate": config.learning_rate,
            "optimizer": config.other_optimizer or config.optimizer,
            "lr_scheduler": config.lr_schedule,
            "batch_size_per_device": config.batch_size,
            "gradient_accumulation_steps": config.accumulate,
            "num_train_images": len(self.dataset),
            "mixed_precision": self.stepper.precision.name,
            "training_adapter": Path(config.training_adapter).name or None,
            "tag_frequency": (statistics.tags or None) if statistics else None,
            "caption_count": statistics.captions if statistics else None,
        }
        with self.at_rest():
            naming, dtype = cast("Naming", config.naming), export.DTYPES[config.save_dtype]
            tensors = export.to_tensors(self.network, self.denoiser, naming, dtype)
            words = config.trigger_words.strip()
            metadata = export.describe(self.network, self.denoiser, path.stem, time.time(), facts, partial, words)
        return export.save(path, tensors, metadata)

    def _refuse_bad_weights(self) -> None:
        # A gradient can overflow although the loss was finite; the next loss would be nan, but the state comes first.
        bad = [name for name, value in self.network.named_parameters() if not value.isfinite().all()]
        if bad:
            raise NonFiniteLoss(f"step {self.step}: {len(bad)} weights are nan or infinite; lower learning_rate")


def open_session(denoiser: Denoiser, dataset: Dataset, config: TrainConfig, run: Run, ranks: Ranks = ALONE) -> Session:
    """Check dataset, model and settings, then build the parts; a resumed run restores them from its last state."""
    refuse_plan(dataset)
    read_columns(dataset)  # its errors come before those of the model
    _try_model(denoiser, dataset, config)
    order, held = make_order(dataset, config)
    states = run.states(config.keep_states)
    state = states.latest() if run.resume else None
    version, changes = RULES, []
    if state is not None:
        changes = check_origin(state, dataset, config)
        version = state.rules
    objective = config.objective(version)
    stepper = make_stepper(denoiser, dataset, config, objective, state, ranks)
    session = Session(denoiser, dataset, config, order, stepper, states, count_steps(config, order), rules=version)
    session.validation = _make_validation(dataset, held, config, objective, stepper)
    if state is not None:
        session.step = state.step
        session.saved = None if changes else state.step  # accepted changes are saved even if no step follows
        stepper.position = resumed_position(state, len(order))
        stepper.epoch = stepper.position // len(order)
    return session


def make_order(dataset: Dataset, config: TrainConfig) -> tuple[Order, HeldOut]:
    """The order of a run, and the samples that are held out of it."""
    columns, rules = read_columns(dataset), set_rules(dataset, config)
    held = _hold_out(dataset, rules, config)
    trained = ~held.mask if held.samples else None
    full = config.batch_split == "full"
    return Order(columns, config.seed, config.batch_size, rules, trained, full_batches=full), held


def rehearse(
    denoiser: Denoiser,
    plan: Plan,
    config: TrainConfig,
    run: Run | None = None,
    decode: Decode | None = None,
    prompts: Sequence[Any] | None = None,
    out: Path | None = None,
) -> None:
    """Raise now what training on the plan would raise after hours of encoding: what is missing or does not fit.

    The model gets one sample: the latent of a blank image and the conditioning of the empty caption. The LoRA files
    along the way are counted as far as that is known without the dataset: by steps, or by epochs of so many.
    """
    needed = (plan.image_encoder, "an image encoder", "VAE"), (plan.text_encoder, "a text encoder", "CLIP")
    for encoder, what, name in needed:
        if encoder is None:
            raise TrainError(
                f"the dataset is planned without {what} ({name}), which training needs; "
                f"connect a {name} to Encode Dataset"
            )
    if config.tensorboard:
        check_events()
    rules = set_rules(plan, config)
    if config.validation_share:
        _hold_out(plan, rules, config)
    check_samples(plan, config, decode, prompts)
    if config.preservation_weight:
        check_caption(plan, "preservation_caption", config.preservation_caption)
    state = run.states(config.keep_states).latest() if run is not None and run.resume else None
    if state is not None:
        check_origin(state, None, config)
    if config.masked_loss and all(source.masks.mode == "none" for source in plan.sources):
        raise TrainError("masked_loss = true: the dataset has no masks; encode it with masks, or set it to false")
    with TemporaryDirectory(prefix="streamcache-") as folder:
        # Before the session: encoders and model may not fit into memory at once, and a session enables gradients.
        path = store_blank(plan, Path(folder) / "blank")
        with denoiser.session(), open_cache(path) as blank:
            # A blank image has no mask, and the empty caption.
            settings = replace(config, masked_loss=False, preservation_caption="")
            stepper = make_stepper(denoiser, blank, settings, config.objective(RULES), state)
            _try_model(denoiser, blank, config)
            if out is not None and not config.epochs:
                check_room(replace(config, export_epochs=0), stepper.network, out, config.steps, 1, state)
            elif out is not None and state is None:  # as if an epoch were a step
                check_room(replace(config, export_every=0, accumulate=1), stepper.network, out, config.epochs, 1, None)


def check_training(
    denoiser: Denoiser,
    dataset: Dataset,
    config: TrainConfig,
    run: Run,
    decode: Decode | None = None,
    out: Path | None = None,
) -> None:
    """Raise now what training would raise before its first step and a memory forecast does not see.

    The model is not loaded, and nothing is written.
    """
    if config.tensorboard:
        check_events()
    refuse_plan(dataset)
    read_columns(dataset)
    _check_attention(denoiser, config)
    state = run.states(config.keep_states).latest() if run.resume else None
    if state is not None:
        check_origin(state, dataset, config)
    check_samples(dataset, config, decode, None)
    check_parts(denoiser, dataset, config, state)
    if config.export_every or config.export_epochs:
        order, _ = make_order(dataset, config)
        network = make_network(denoiser, config, state)
        check_room(config, network, out or run.lora, count_steps(config, order), len(order), state)


def count_steps(config: TrainConfig, order: Order) -> int:
    """Optimizer steps of the run."""
    return -(-config.epochs * len(order) // config.accumulate) if config.epochs else config.steps


def set_rules(dataset: Samples, config: TrainConfig) -> dict[str, SetRule]:
    """How each set takes part: by the settings, otherwise as stored in the dataset."""
    for setting in ("set_samples", "set_weights"):
        for name in getattr(config, setting):
            if name not in dataset.sets:
                known = ", ".join(f'"{known}"' for known in dataset.sets)
                raise TrainError(f'{setting}: "{name}" is not a set of the dataset; expected one of {known}')
            if dataset.sets[name].get("prior"):
                raise TrainError(f'{setting}: "{name}" is a prior set; its samples are drawn to match the others')
    return {name: _rule(name, facts, config) for name, facts in dataset.sets.items()}


def _try_model(denoiser: Denoiser, dataset: Dataset, config: TrainConfig) -> None:
    """What does not fit the dataset, or has no such attention, is refused here."""
    _check_attention(denoiser, config)
    with attention_kernel(config.attention):
        denoiser.prepare_for(dataset)


def _check_attention(denoiser: Denoiser, config: TrainConfig) -> None:
    check_attention(config.attention, denoiser.device, choose_precision(config.precision, denoiser.device).dtype)


def _hold_out(samples: Samples, rules: Mapping[str, SetRule], config: TrainConfig) -> HeldOut:
    prior = np.array([rules[name].prior for name in samples.sets], bool)[samples.column("set")]
    return hold_out(samples, config.validation_share, prior)


def _rule(name: str, facts: Mapping[str, Any], config: TrainConfig) -> SetRule:
    rule = SetRule.stored(facts)
    if name in config.set_samples:
        return SetRule(rule.prior, samples=int(config.set_samples[name]))
    if name in config.set_weights:
        return SetRule(rule.prior, weight=config.set_weights[name])
    return rule


def _make_validation(
    dataset: Dataset, held: HeldOut, config: TrainConfig, objective: ObjectiveSettings, stepper: Stepper
) -> Validation | None:
    if not held.samples:
        return None
    samples = held.samples[: config.validation_samples]
    return Validation(dataset, samples, config.batch_size, objective, stepper.sizes, stepper.empty)
