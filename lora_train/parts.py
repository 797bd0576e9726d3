"""The parts that a step uses, made from model, dataset and settings, or restored from a saved state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xxhash
from torch import Tensor

from ..dataset_cache import EMPTY_CAPTION, CacheWriter, Dataset, Plan, map_tensors, realize
from ..errors import TrainError
from . import export
from .adapters import KINDS, Network, build_network, load_fixed, read_lora, split_lora
from .compute import Ema
from .config import TrainConfig
from .data import VAE_SCALE, KnownSizes
from .denoiser import Denoiser, Downscaled, Naming
from .memory import choose_precision, with_data
from .objective import ObjectiveSettings
from .optimizers import load_optimizer, make_optimizer, was_fused
from .other_captions import Dropout, Preservation, find_conditioning
from .ranks import ALONE, Ranks
from .run import SavedState, find_exports, resumed_position
from .step import Stepper, Weights

# Values of each layer of the base model that ranks compare: enough to tell two models apart, fast on an offloaded one.
SAMPLE = 256


def make_stepper(
    denoiser: Denoiser,
    dataset: Dataset,
    config: TrainConfig,
    objective: ObjectiveSettings,
    state: SavedState | None,
    ranks: Ranks = ALONE,
) -> Stepper:
    """A stepper for new adapters, or those of a saved state. What the settings ask for and is not there is refused."""
    precision = choose_precision(config.precision, denoiser.device)
    if config.masked_loss and "mask" not in dataset.fields:
        raise TrainError("masked_loss = true: the dataset has no masks; encode it with masks, or set it to false")
    weights = np.asarray(dataset.column("weight"))
    network = make_network(denoiser, config, state)
    _refuse_without_lora(network, config)
    groups = network.parameter_groups(config.learning_rate, config.lora_plus)
    fused = state is None or was_fused(state.optimizer)
    optimizer = make_optimizer(config.optimizer_choice(), groups, config.rates(), fused)
    if config.scale_weight_norms and hasattr(optimizer, "eval"):
        raise TrainError(
            f"scale_weight_norms = {config.scale_weight_norms:g}: not possible with a schedule-free optimizer, whose "
            "weights follow from an average; set it to 0, or choose another optimizer"
        )
    stepper = Stepper(
        denoiser=denoiser,
        network=network,
        optimizer=optimizer,
        scaler=precision.make_scaler(),
        precision=precision,
        objective=objective,
        weights=Weights(None if (weights == 1).all() else weights, objective),
        sizes=KnownSizes(dataset, denoiser.downscale if isinstance(denoiser, Downscaled) else VAE_SCALE),
        seed=config.seed,
        accumulate=config.accumulate,
        clip_norm=config.clip_norm,
        dropout=_make_dropout(denoiser, dataset, config),
        preservation=_make_preservation(denoiser, dataset, config),
        empty=_conditioning(denoiser, dataset, "guidance_target") if config.guidance_target != 1 else None,
        training_adapter=_load_training_adapter(denoiser, config),
        max_norm=config.scale_weight_norms,
        ema=Ema(network, config.ema_decay) if config.ema_decay else None,
        draws_masks=config.adapter_dropout > 0,
        ranks=ranks,
        deterministic=config.deterministic,
    )
    if state is not None:
        _restore(stepper, state, config)
    return stepper


def identity(stepper: Stepper, dataset: Dataset, config: TrainConfig) -> dict[str, Any]:
    """What all ranks must have in common, for comparison before the first step."""
    other = stepper.training_adapter
    layers, trained = stepper.denoiser.adaptable(), stepper.network.trained()
    settings = {
        name: value for name, value in config.to_dict().items() if name not in ("start_from", "training_adapter")
    }
    return {
        "version of torch": torch.__version__.partition("+")[0],
        "version of the training rules": stepper.objective.rules,
        "dataset": {"id": dataset.id, "generation": dataset.generation},
        "setting": settings,
        "precision": stepper.precision.name,
        "model layer": {name: digest([getattr(layers[name], "weight", None)], SAMPLE) for name in trained},
        "adapter's first weights": digest(stepper.network.tensors().values()),
        "training adapter": None if other is None else digest(other.tensors().values()),
    }


@torch.no_grad()
def digest(tensors: Iterable[Tensor | None], most: int = 0) -> str:
    """A hash of these tensors, or of their shapes and at most so many values of each, evenly spread."""
    found = xxhash.xxh3_128()
    for tensor in tensors:
        if tensor is None:
            continue
        flat = tensor.detach().reshape(-1)
        if most:
            flat = flat[:: max(len(flat) // most, 1)].float()
        found.update(f"{list(tensor.shape)}".encode())
        found.update(flat.cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def check_parts(denoiser: Denoiser, dataset: Dataset, config: TrainConfig, state: SavedState | None) -> None:
    """Refuse what `make_stepper` would refuse and a memory forecast leaves out, because it reads data."""
    if config.start_from and state is None:
        make_network(denoiser, config, state)
    _make_dropout(denoiser, dataset, config)


def check_room(
    config: TrainConfig, network: Network, out: Path, steps: int, batches: int, state: SavedState | None
) -> None:
    """Refuse LoRA files along the way that would fill the disk. Those that are there may be replaced: they are free."""
    every, epochs = config.export_every, config.export_epochs
    at = (state.step, resumed_position(state, batches)) if state is not None else (0, 0)
    due = export.count_files(every, epochs * batches, config.accumulate, steps, *at)
    kept = min(due, config.keep_exports + 1) if config.keep_exports else due
    if every or epochs:
        size = export.file_bytes(network, export.DTYPES[config.save_dtype])
        export.check_room(out, size, kept - len(find_exports(out)), every, epochs)


def store_blank(plan: Plan, path: Path) -> Path:
    """A cache with the latent of a blank image and the conditioning of the empty caption."""
    latent, conditioning, size = plan.encode_blank()
    with CacheWriter(path) as writer:
        writer.put(EMPTY_CAPTION, conditioning, "conditioning")
        writer.name(EMPTY_CAPTION, EMPTY_CAPTION)
        writer.add(latent, conditioning, "", "a blank image", original_size=size, crop=(0, 0, *size))
    return path


def make_network(denoiser: Denoiser, config: TrainConfig, state: SavedState | None) -> Network:
    """The adapters: new ones, those of `start_from`, or those of a saved state."""
    existing = None
    if state is not None:
        existing = split_lora({**state.carried, **state.adapter}, where=f"the state of step {state.step}")
    elif config.start_from:
        existing = read_lora(config.start_from)
    network = build_network(denoiser, config.adapters(), existing, resumes=state is not None)
    export.check_names(network, denoiser, cast("Naming", config.naming))
    export.warn_of_unread_names(network, denoiser, cast("Naming", config.naming))
    return network.moved(dtype=export.DTYPES[config.adapter_dtype])


def _refuse_without_lora(network: Network, config: TrainConfig) -> None:
    """Refuse settings for LoRA if a file with none of them continues, whatever `adapter` says."""
    kinds = {made.factors.label for made in network.trained().values() if made.factors is not None}
    for name, off in (("lora_plus", 1.0), ("scale_weight_norms", 0.0)):
        if getattr(config, name) != off and KINDS["lora"].label not in kinds:
            raise TrainError(
                f"{name} = {getattr(config, name):g}: only for LoRA; the layers of {config.start_from} continue as "
                f"{', '.join(sorted(kinds))}; turn it off"
            )


def _restore(stepper: Stepper, state: SavedState, config: TrainConfig) -> None:
    load_optimizer(stepper.optimizer, config.optimizer_choice(), state.optimizer)
    if state.scaler:
        stepper.scaler.load_state_dict(dict(state.scaler))
    if stepper.ema is not None and state.ema:
        stepper.ema.load(state.ema)


def _make_dropout(denoiser: Denoiser, dataset: Dataset, config: TrainConfig) -> Dropout | None:
    if not config.caption_dropout:
        return None
    if EMPTY_CAPTION not in dataset.named:
        raise TrainError(
            f"caption_dropout = {config.caption_dropout}: the dataset has no encoded empty caption; "
            "encode it again, which adds only that, or set caption_dropout = 0"
        )
    empty = realize(dataset.entry(dataset.named[EMPTY_CAPTION]))
    return Dropout(config.caption_dropout, map_tensors(empty, lambda tensor: tensor.to(denoiser.device)))


def _make_preservation(denoiser: Denoiser, dataset: Dataset, config: TrainConfig) -> Preservation | None:
    if not config.preservation_weight:
        return None
    words = _conditioning(denoiser, dataset, "preservation_caption", config.preservation_caption)
    return Preservation(config.preservation_weight, config.preservation_share, words)


def _conditioning(denoiser: Denoiser, dataset: Dataset, setting: str, caption: str = "") -> Any:
    with with_data():
        words = find_conditioning(dataset, setting, caption)
    return map_tensors(words, lambda tensor: tensor.to(denoiser.device))


def _load_training_adapter(denoiser: Denoiser, config: TrainConfig) -> Network | None:
    if not config.training_adapter:
        return None
    try:
        with with_data():
            network = load_fixed(denoiser, read_lora(config.training_adapter))
    except TrainError as error:
        raise TrainError(f"training_adapter: {error}") from None
    return network.moved(denoiser.device)
