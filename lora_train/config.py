"""The settings of a training run: one frozen dataclass; each has one name in TOML, on the command line, on the node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..dataset_cache import Limits, Setting, SettingError, check_setting, closest_name
from .adapters import AXES, KINDS, AdapterSettings
from .errors import TrainError
from .export import DTYPES, NAMINGS, dora_axis
from .memory import PRECISIONS
from .objective import LOSSES, TIMESTEPS, WEIGHTINGS, ObjectiveSettings
from .optim import OPTIMIZERS, SCHEDULES, Curve, Rates

log = logging.getLogger("streamcache")

MODES = ("resume", "new", "overwrite")

# Earlier names, and the names that other trainers give to the same thing: old name → the setting it loads into.
RENAMED_SETTINGS = {
    "lr": "learning_rate",
    "network_dim": "rank",
    "network_alpha": "alpha",
    "algorithm": "adapter",
    "train_batch_size": "batch_size",
    "grad_accumulation_steps": "accumulate",
    "gradient_accumulation_steps": "accumulate",
    "max_train_steps": "steps",
    "max_train_epochs": "epochs",
    "max_grad_norm": "clip_norm",
    "lr_scheduler": "lr_schedule",
    "lr_warmup_steps": "warmup_steps",
    "loss_function": "loss",
    "loss_type": "loss",
    "training_dtype": "precision",
    "mixed_precision": "precision",
    "lora_dtype": "adapter_dtype",
    "gradient_checkpointing": "checkpointing",
    "caption_dropout_rate": "caption_dropout",
    "prior_loss_weight": "prior_weight",
    "existing_lora": "start_from",
    "dataloader_prefetch": "prefetch",
}

_TEXT = "the dataset holds encoded text, and gradients do not reach an encoder that ran earlier; train the model alone"
REFUSED = {"train_text_encoder": _TEXT, "text_encoder_lr": _TEXT, "text_encoder_learning_rate": _TEXT}


def _limits(group: str, about: str, **limits: Any) -> dict[str, Limits]:
    return {"limits": Limits(about, group, **limits)}


def _set(default: Any, group: str, about: str, **limits: Any) -> Any:
    return field(default=default, metadata=_limits(group, about, **limits))


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a training run, checked when it is made."""

    steps: int = _set(1000, "run", "optimizer steps to train; not read when epochs are given", low=1)
    epochs: int = _set(0, "run", "whole passes over the dataset, instead of steps; 0: count steps", low=0)
    batch_size: int = _set(1, "run", "samples in a model call; a bucket with fewer still trains", low=1, high=65536)
    accumulate: int = _set(1, "run", "batches whose gradients are added up before the weights change", low=1)
    seed: int = _set(0, "run", "decides order, noise, times, variants and the adapter's start", low=0, high=2**63 - 1)
    name: str = _set("", "run", "the run's name, and its folder; empty: named after the output file", decides=False)
    mode: str = _set("new", "run", "what to do when a run of this name exists", choices=MODES, decides=False)
    accept_changes: bool = _set(
        False, "run", "resume although the dataset or a setting is not what the run had", decides=False
    )

    adapter: str = _set("lora", "adapter", "kind of adapter", choices=tuple(KINDS))
    rank: int = _set(16, "adapter", "rank of the adapter's matrices", low=1)
    alpha: float = _set(0.0, "adapter", "scale is alpha / rank; 0: alpha equals the rank", low=0)
    rank_stabilised: bool = _set(False, "adapter", "scale by alpha / √rank, for high ranks")
    dora: bool = _set(False, "adapter", "learn magnitude and direction apart (DoRA)")
    dora_axis: str = _set(
        "auto", "adapter", "what DoRA's magnitudes belong to; auto: as the naming wants it", choices=("auto", *AXES)
    )
    lokr_factor: int = _set(0, "adapter", "size of LoKr's smaller matrix; 0: as square as it can be", low=0)
    adapter_dropout: float = _set(0.0, "adapter", "share of adapter inputs dropped in a step", low=0, high=0.99)
    adapter_dtype: str = _set("fp32", "adapter", "dtype of the trained weights", choices=tuple(DTYPES))
    targets: str = _set("attention", "adapter", "modules to adapt: a preset of the model, or patterns with commas")
    start_from: str = _set("", "adapter", "an existing LoRA file to go on from")
    naming: str = _set("comfyui", "adapter", "key naming of the saved file", choices=NAMINGS, decides=False)

    save_dtype: str = _set("fp32", "adapter", "dtype of the saved file", choices=tuple(DTYPES), decides=False)

    learning_rate: float = _set(1e-4, "learning", "step size", above=0)
    group_rates: dict[str, float] = field(
        default_factory=dict,
        metadata=_limits("learning", "module pattern → its own learning rate; 0: not trained", low=0),
    )
    optimizer: str = _set("AdamW", "learning", "how gradients become steps", choices=tuple(OPTIMIZERS))
    weight_decay: float = _set(0.01, "learning", "pull of the weights towards zero", low=0)
    beta1: float = _set(0.9, "learning", "memory of the gradient (momentum for SGD)", low=0, high=0.99999)
    beta2: float = _set(0.999, "learning", "memory of the squared gradient", low=0, high=0.9999999)
    epsilon: float = _set(1e-8, "learning", "smallest divisor in the step", above=0)
    lr_schedule: str = _set("constant", "learning", "the learning rate over the run", choices=tuple(SCHEDULES))
    warmup_steps: int = _set(0, "learning", "steps over which the learning rate rises from zero", low=0)
    lr_cycles: int = _set(1, "learning", "cycles of cosine_restarts", low=1)
    lr_power: float = _set(1.0, "learning", "exponent of polynomial", above=0)
    lr_floor: float = _set(0.0, "learning", "share of the learning rate that is left at the end", low=0, high=1)
    clip_norm: float = _set(1.0, "learning", "longest gradient; 0: no clipping", low=0)
    ema_decay: float = _set(
        0.0, "learning", "moving average of the weights, used for saving; 0: off", low=0, high=0.999999
    )

    loss: str = _set("mse", "objective", "cost of an error", choices=tuple(LOSSES))
    huber_delta: float = _set(0.1, "objective", "error from which huber turns linear", above=0)
    weighting: str = _set("none", "objective", "weight of a step by its noise", choices=tuple(WEIGHTINGS))
    min_snr_gamma: float = _set(5.0, "objective", "bound of min_snr", above=0)
    timesteps: str = _set("uniform", "objective", "how noise levels are drawn", choices=tuple(TIMESTEPS))
    logit_mean: float = _set(0.0, "objective", "centre of logit_normal; above 0: more noise")
    logit_std: float = _set(1.0, "objective", "spread of logit_normal", above=0)
    shift: float = _set(1.0, "objective", "shift towards noise, as large images want it; 1: none", above=0)
    t_min: float = _set(0.0, "objective", "least noise that is trained on", low=0, high=1)
    t_max: float = _set(1.0, "objective", "most noise that is trained on", low=0, high=1)
    noise_offset: float = _set(0.0, "objective", "shift of whole channels in the noise", low=0)
    masked_loss: bool = _set(False, "objective", "count the masked area only")
    unmasked_weight: float = _set(0.0, "objective", "what the area outside of a mask still counts", low=0, high=1)
    prior_weight: float = _set(1.0, "objective", "weight of prior (class) samples in the loss", low=0)
    caption_dropout: float = _set(0.0, "objective", "share of rows trained on the empty caption", low=0, high=1)

    precision: str = _set(
        "auto", "memory", "compute in this; auto: bf16 where the GPU has it", choices=tuple(PRECISIONS)
    )
    checkpointing: bool = _set(False, "memory", "recompute activations per block: less memory, slower")
    prefetch: int = _set(2, "memory", "batches loaded ahead; 0: load between steps", low=0, high=64, decides=False)

    set_samples: dict[str, float] = field(
        default_factory=dict, metadata=_limits("data", "set → samples an epoch, redrawn each epoch", low=1)
    )
    set_weights: dict[str, float] = field(
        default_factory=dict, metadata=_limits("data", "set → share of it an epoch sees (0.5: half, 2: twice)", above=0)
    )

    validation_share: float = _set(0.0, "validation", "share of the samples held out", low=0, high=0.9)
    validation_every: int = _set(100, "validation", "steps between validations", low=1, decides=False)
    validation_samples: int = _set(64, "validation", "held-out samples that are measured", low=1, decides=False)

    save_every: int = _set(250, "saving", "steps between saved states; 0: at the end only", low=0, decides=False)
    keep_states: int = _set(2, "saving", "latest states that are kept", low=1, decides=False)

    sample_every: int = _set(
        0,
        "samples",
        "steps between sample pictures; 0: eight in a run that is given a VAE, else none",
        low=0,
        decides=False,
    )
    sample_captions: tuple[str, ...] = _set(
        (), "samples", "captions of the dataset to draw; empty: the first", decides=False
    )
    sample_steps: int = _set(20, "samples", "model calls for a sample picture", low=1, decides=False)
    sample_seed: int = _set(1, "samples", "seed of the sample pictures", low=0, decides=False)
    tensorboard: bool = _set(False, "samples", "write TensorBoard events too", decides=False)

    def __post_init__(self) -> None:
        for f in fields(self):
            try:
                object.__setattr__(self, f.name, check_setting(TRAIN_SETTINGS[f.name], getattr(self, f.name)))
            except SettingError as error:
                raise TrainError(str(error)) from None
        if self.t_min >= self.t_max:
            raise TrainError(f"t_min = {self.t_min}: not below t_max = {self.t_max}; widen the range of noise")
        both = sorted(set(self.set_samples) & set(self.set_weights))
        if both:
            raise TrainError(f'set "{both[0]}": has both set_samples and set_weights; give one of them')

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON and TOML hold them."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def objective(self) -> ObjectiveSettings:
        """The settings of the objective, which bear the same names there."""
        return ObjectiveSettings(**{f.name: getattr(self, f.name) for f in fields(ObjectiveSettings)})

    def adapters(self) -> AdapterSettings:
        """The settings of the adapters."""
        return AdapterSettings(
            kind=self.adapter,
            rank=self.rank,
            alpha=self.alpha or None,
            rank_stabilised=self.rank_stabilised,
            dropout=self.adapter_dropout,
            dora=self.dora,
            dora_axis=dora_axis(self.naming) if self.dora_axis == "auto" else self.dora_axis,
            lokr_factor=self.lokr_factor or None,
            targets=self.targets,
            group_rates=self.group_rates,
            seed=self.seed,
        )

    def rates(self) -> Rates:
        """The numbers that optimizers take."""
        return Rates(**{f.name: getattr(self, f.name) for f in fields(Rates)})

    def curve(self, steps: int) -> Curve:
        """The learning rate over a run of this many steps."""
        return Curve(self.lr_schedule, steps, self.warmup_steps, self.lr_cycles, self.lr_power, self.lr_floor)


_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "tuple[str, ...]": tuple, "dict[str, float]": dict}
TRAIN_SETTINGS: dict[str, Setting] = {
    f.name: Setting(
        f.name,
        _TYPES[str(f.type)],
        f.default_factory() if callable(f.default_factory) else f.default,
        f.metadata["limits"],
    )
    for f in fields(TrainConfig)
}


def load_config(
    values: Mapping[str, Any], place: str = "settings", notice: Callable[[str], None] = log.warning
) -> TrainConfig:
    """A checked configuration out of named values, also under their old names; `place` begins every error."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        known = _resolve(name, place)
        if known in found:
            raise TrainError(f"{place}: {name} is {known}, which is set there too; keep one of them")
        if known != name:
            notice(f"{place}: {name} is now {known}")
        found[known] = value
    try:
        return TrainConfig(**found)
    except TrainError as error:
        raise TrainError(f"{place}: {error}") from None


def read_config(path: str | Path) -> dict[str, Any]:
    """The values in a TOML file, unchecked, under the names that stand there."""
    try:
        with open(path, "rb") as file:
            return _toml().load(file)
    except OSError as error:
        raise TrainError(f"{path}: cannot be read ({error.strerror}); give the path of a TOML file") from None
    except ValueError as error:
        raise TrainError(f"{path}: not valid TOML: {error}") from None


def differences(old: Mapping[str, Any], new: TrainConfig) -> list[str]:
    """Settings that make `new` another run than the one that was configured as `old`, each with both values."""
    passing = {"steps", "epochs"} if new.lr_schedule == "constant" else set()
    return [
        f"{name}: was {old[name]!r}, is {value!r}"
        for name, value in new.to_dict().items()
        if TRAIN_SETTINGS[name].limits.decides and name not in passing and name in old and old[name] != value
    ]


def _resolve(name: str, place: str) -> str:
    if name in REFUSED:
        raise TrainError(f"{place}: {name} is refused: {REFUSED[name]}")
    known = RENAMED_SETTINGS.get(name, name)
    if known not in TRAIN_SETTINGS:
        hint = closest_name(name, TRAIN_SETTINGS) or f"; known are {', '.join(TRAIN_SETTINGS)}"
        raise TrainError(f'{place}: no setting is named "{name}"{hint}')
    return known


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value


def _toml() -> Any:
    try:
        import tomllib
    except ImportError:
        try:
            import tomli as tomllib
        except ImportError:
            raise TrainError("TOML files need Python 3.11, or the package tomli: pip install tomli") from None
    return tomllib
