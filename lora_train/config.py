"""The settings of a training run, each declared once: name, default, limits and help text.

TOML files, command-line flags, node inputs, documentation and validation all come from this table.
"""
# ruff: noqa: RUF009 - `_table` makes a field

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any, cast

from ..dataset_cache import Limits, Setting, SettingError, check_setting
from ..errors import TrainError
from ..setting import type_of
from .adapters import AXES, KINDS, AdapterSettings, Axis
from .compute import ATTENTIONS
from .denoiser import NAMINGS, Naming
from .export import DTYPES, dora_axis
from .memory import PRECISIONS
from .objective import (
    GUIDANCE_SCHEDULES,
    HUBER_SCHEDULES,
    LOSSES,
    RESOLUTION_SHIFTS,
    RULES,
    TIMESTEPS,
    WEIGHTINGS,
    ObjectiveSettings,
)
from .optimizers import OPTIMIZERS, SCHEDULES, Curve, OptimizerChoice, Rates

MODES = ("resume", "new", "overwrite")
KEEP_BY = ("last", "validation")


def _set(default: Any, group: str, about: str, **limits: Any) -> Any:
    return field(default=default, metadata={"limits": Limits(about, group, **limits)})


def _table(group: str, about: str, **limits: Any) -> Any:
    return field(default_factory=dict, metadata={"limits": Limits(about, group, **limits)})


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a training run, validated when it is created."""

    steps: int = _set(1000, "run", "Training steps (optimizer updates); ignored if epochs is set", low=1)
    epochs: int = _set(0, "run", "Passes over the dataset, instead of steps (0 = use steps)", low=0)
    batch_size: int = _set(
        1, "run", "Samples per batch; smaller if a bucket has fewer, or as batch_split says", low=1, high=65536
    )
    accumulate: int = _set(1, "run", "Gradient accumulation: batches per optimizer step", low=1)
    seed: int = _set(
        0,
        "run",
        "Seed for sample order, noise, timesteps, caption variants and adapter initialization",
        low=0,
        high=2**63 - 1,
    )
    deterministic: bool = _set(False, "run", "Row by row: bit-equal on any number of ranks, but slower and more memory")
    name: str = _set("", "run", "Name of the run and its folder (empty = name of the output file)", decides=False)
    mode: str = _set("new", "run", "What to do if a run with this name exists", choices=MODES, decides=False)
    accept_changes: bool = _set(False, "run", "Resume even if the dataset or settings have changed", decides=False)

    adapter: str = _set("lora", "adapter", "Adapter type", choices=tuple(KINDS))
    rank: int = _set(16, "adapter", "Rank (network dim) of the adapter", low=1)
    alpha: float = _set(0.0, "adapter", "Network alpha: weights are scaled by alpha / rank (0 = same as rank)", low=0)
    rank_stabilised: bool = _set(False, "adapter", "Rank-stabilized LoRA (rsLoRA): scale by alpha / √rank")
    dora: bool = _set(False, "adapter", "Train DoRA: decompose weights into magnitude and direction")
    dora_axis: str = _set(
        "auto",
        "adapter",
        "Axis of the DoRA magnitudes (auto = input, or output for diffusers naming)",
        choices=("auto", *AXES),
    )
    lokr_factor: int = _set(
        0, "adapter", "LoKr factor: size of the smaller matrix (0 = automatic, near the square root)", low=0
    )
    adapter_dropout: float = _set(0.0, "adapter", "Dropout on the adapter inputs", low=0, high=0.99)
    adapter_dtype: str = _set("fp32", "adapter", "Data type of the trained weights", choices=tuple(DTYPES))
    targets: str = _set(
        "attention",
        "adapter",
        "Modules to train: a preset (attention, attention+mlp, all) or comma-separated patterns; ! excludes",
    )
    start_from: str = _set(
        "", "adapter", "LoRA file to continue training from; rank must be the same, alpha comes from the file"
    )
    group_ranks: dict[str, float] = _table("adapter", "Rank per module pattern, such as convolutions=8", low=1)
    group_alphas: dict[str, float] = _table(
        "adapter", "Alpha per module pattern (otherwise alpha, or the rank of the module)", above=0
    )
    training_adapter: str = _set(
        "",
        "adapter",
        "LoRA file that corrects a distilled base: on while training, off for sample images, not in the saved file",
    )
    naming: str = _set("comfyui", "adapter", "Key format of the saved LoRA", choices=NAMINGS, decides=False)

    save_dtype: str = _set("fp32", "adapter", "Data type of the saved LoRA", choices=tuple(DTYPES), decides=False)

    learning_rate: float = _set(1e-4, "learning", "Learning rate", above=0)
    group_rates: dict[str, float] = _table("learning", "Learning rate per module pattern (0 = do not train)", low=0)
    optimizer: str = _set("AdamW", "learning", "Optimizer", choices=tuple(OPTIMIZERS))
    other_optimizer: str = _set(
        "", "learning", "Name of an optimizer of pytorch-optimizer or prodigy-plus-schedule-free, instead of optimizer"
    )
    optimizer_args: dict[str, object] = _table(
        "learning", "Further arguments of the optimizer, such as d_coef=2, betas=(0.9, 0.99)"
    )
    lora_plus: float = _set(1.0, "learning", "LoRA+: factor on the learning rate of up (1 = off, usual is 16)", above=0)
    scale_weight_norms: float = _set(
        0.0, "learning", "Maximum norm of a LoRA's change of weight; larger ones are scaled down (0 = off)", low=0
    )
    weight_decay: float = _set(0.01, "learning", "Weight decay", low=0)
    beta1: float = _set(0.9, "learning", "Adam beta1 (momentum for SGD)", low=0, high=0.99999)
    beta2: float = _set(0.999, "learning", "Adam beta2", low=0, high=0.9999999)
    epsilon: float = _set(1e-8, "learning", "Adam epsilon", above=0)
    lr_schedule: str = _set("constant", "learning", "Learning rate schedule", choices=tuple(SCHEDULES))
    warmup_steps: int = _set(0, "learning", "Learning rate warmup steps", low=0)
    lr_cycles: int = _set(1, "learning", "Number of cycles for cosine_restarts", low=1)
    lr_power: float = _set(1.0, "learning", "Power of the polynomial schedule", above=0)
    lr_floor: float = _set(
        0.0,
        "learning",
        "Minimum learning rate at the end of the schedule, as a fraction of learning_rate",
        low=0,
        high=1,
    )
    clip_norm: float = _set(1.0, "learning", "Clip gradients to this norm (0 = off)", low=0)
    ema_decay: float = _set(
        0.0, "learning", "EMA decay; the averaged weights are saved and sampled (0 = off)", low=0, high=0.999999
    )

    loss: str = _set("mse", "objective", "Loss function", choices=tuple(LOSSES))
    huber_delta: float = _set(0.1, "objective", "Huber delta: above this error the loss grows linearly", above=0)
    huber_schedule: str = _set(
        "constant",
        "objective",
        "Huber delta over the timesteps, from 1 without noise to huber_delta",
        choices=HUBER_SCHEDULES,
    )
    weighting: str = _set("none", "objective", "Loss weighting by timestep", choices=tuple(WEIGHTINGS))
    min_snr_gamma: float = _set(5.0, "objective", "Min-SNR gamma", above=0)
    timesteps: str = _set("uniform", "objective", "Timestep sampling", choices=tuple(TIMESTEPS))
    logit_mean: float = _set(0.0, "objective", "Mean of logit_normal timesteps (above 0 = more noise)")
    logit_std: float = _set(1.0, "objective", "Standard deviation of logit_normal timesteps", above=0)
    shift: float = _set(
        1.0,
        "objective",
        "Timestep shift; higher values train more on noisy timesteps, for high resolutions (1 = off)",
        above=0,
    )
    resolution_shift: str = _set(
        "off",
        "objective",
        "Timestep shift by image size, as Flux or SD3 is sampled; 1024×1024 keeps the shift of the model and of shift",
        choices=RESOLUTION_SHIFTS,
    )
    t_min: float = _set(0.0, "objective", "Minimum timestep (0 = no noise, 1 = only noise)", low=0, high=1)
    t_max: float = _set(1.0, "objective", "Maximum timestep (0 = no noise, 1 = only noise)", low=0, high=1)
    noise_offset: float = _set(0.0, "objective", "Noise offset", low=0)
    multires_noise: int = _set(
        0, "objective", "Multi-resolution noise: levels of coarser noise (0 = off, usual is 6 to 10)", low=0, high=32
    )
    multires_discount: float = _set(0.3, "objective", "Factor from one noise level to the next", above=0, high=1)
    input_perturbation: float = _set(
        0.0, "objective", "Input perturbation: additional noise in the input only (0 = off, usual is 0.1)", low=0
    )
    masked_loss: bool = _set(False, "objective", "Train on the masked area only")
    unmasked_weight: float = _set(0.0, "objective", "Loss weight of the area outside the mask", low=0, high=1)
    normalise_masks: bool = _set(
        False, "objective", "Divide the masked loss by the mask's area, so that small masks count as much as large ones"
    )
    prior_weight: float = _set(1.0, "objective", "Loss weight of prior (regularization) samples", low=0)
    caption_dropout: float = _set(0.0, "objective", "Fraction of samples trained with an empty caption", low=0, high=1)

    preservation_weight: float = _set(
        0.0,
        "objective",
        "Preservation without images: weight of the loss that keeps what the model does for preservation_caption "
        "(0 = off)",
        low=0,
    )
    preservation_share: float = _set(1.0, "objective", "Share of batches with preservation", above=0, high=1)
    preservation_caption: str = _set(
        "", "objective", "Caption of the dataset to preserve, such as the class (empty = the empty caption)"
    )
    guidance_target: float = _set(
        1.0, "objective", "Guidance in the target, for distilled models that are used without CFG (1 = off)", above=0
    )
    guidance_schedule: str = _set(
        "constant",
        "objective",
        "Guidance over the timesteps: sigma fades guidance_target out with the noise",
        choices=GUIDANCE_SCHEDULES,
    )

    precision: str = _set(
        "auto", "memory", "Compute precision (auto = bf16 if the GPU supports it, else fp32)", choices=tuple(PRECISIONS)
    )
    checkpointing: bool = _set(False, "memory", "Gradient checkpointing: less memory, slower")
    activation_offload: bool = _set(
        False, "memory", "Keep activations in RAM until the backward pass: less VRAM, slower", decides=False
    )
    compile: bool = _set(False, "memory", "Compile each block: minutes at first; the gain depends on the GPU")
    attention: str = _set(
        "auto",
        "memory",
        "Attention kernel of torch (auto = torch chooses, or the MODEL's own attention if it can be trained)",
        choices=tuple(ATTENTIONS),
    )
    prefetch: int = _set(
        2, "memory", "Batches to load in advance (0 = load between steps)", low=0, high=64, decides=False
    )

    set_samples: dict[str, float] = _table("data", "Samples per epoch from each set, drawn again every epoch", low=1)
    set_weights: dict[str, float] = _table("data", "Share of each set per epoch (0.5 = half, 2 = twice)", above=0)
    batch_split: str = _set(
        "even",
        "data",
        "How to split a bucket that batch_size does not divide: 6 samples at batch size 4 are 3 + 3 (even) or 4 + 2 "
        "(full)",
        choices=("even", "full"),
    )

    validation_share: float = _set(0.0, "validation", "Fraction of samples held out for validation", low=0, high=0.9)
    validation_every: int = _set(100, "validation", "Validate every N steps", low=1, decides=False)
    validation_samples: int = _set(64, "validation", "Maximum number of validation samples", low=1, decides=False)

    save_every: int = _set(
        250, "saving", "Save a resumable state every N steps (0 = only at the end)", low=0, decides=False
    )
    keep_states: int = _set(2, "saving", "Number of saved states to keep", low=1, decides=False)
    export_every: int = _set(0, "saving", "Save a LoRA file every N steps (0 = off)", low=0, decides=False)
    export_epochs: int = _set(0, "saving", "Save a LoRA file every N epochs (0 = off)", low=0, decides=False)
    keep_exports: int = _set(0, "saving", "Number of these LoRA files to keep (0 = all)", low=0, decides=False)
    keep_exports_by: str = _set(
        "last", "saving", "Keep the last ones, or those with the lowest validation loss", choices=KEEP_BY, decides=False
    )
    trigger_words: str = _set("", "saving", "Trigger words, stored in the LoRA file for other tools", decides=False)
    tag_statistics: bool = _set(True, "saving", "Store how often each tag occurs, in the LoRA file", decides=False)

    sample_every: int = _set(
        0,
        "samples",
        "Generate sample images every N steps (0 = eight times per run, or every 200 steps with epochs, if a VAE is "
        "given)",
        low=0,
        decides=False,
    )
    sample_captions: tuple[str, ...] = _set(
        (), "samples", "Captions for sample images, taken from the dataset (empty = the first one)", decides=False
    )
    sample_steps: int = _set(20, "samples", "Sampling steps for sample images", low=1, decides=False)
    sample_seed: int = _set(1, "samples", "Seed for sample images", low=0, decides=False)
    tensorboard: bool = _set(False, "samples", "Write TensorBoard logs", decides=False)

    def __post_init__(self) -> None:
        for f in fields(self):
            try:
                object.__setattr__(self, f.name, check_setting(TRAIN_SETTINGS[f.name], getattr(self, f.name)))
            except SettingError as error:
                raise TrainError(str(error)) from None
        if self.t_min >= self.t_max:
            raise TrainError(f"t_min = {self.t_min}: not below t_max = {self.t_max}; lower t_min or raise t_max")
        both = sorted(set(self.set_samples) & set(self.set_weights))
        if both:
            raise TrainError(f'set "{both[0]}": is in both set_samples and set_weights; keep one of them')
        self._check_adapters()

    def _check_adapters(self) -> None:
        """Settings that fit only some adapters, optimizers or each other."""
        for pattern, rank in self.group_ranks.items():
            if not rank.is_integer():
                raise TrainError(f"group_ranks.{pattern} = {rank:g}: expected a whole number")
        for name, off in (("lora_plus", 1.0), ("scale_weight_norms", 0.0)):
            if getattr(self, name) != off and self.adapter != "lora":
                raise TrainError(f'{name} = {getattr(self, name):g}: only for adapter = "lora", not "{self.adapter}"')
        if self.lora_plus != 1 and not self.other_optimizer and OPTIMIZERS[self.optimizer].one_rate:
            raise TrainError(f'lora_plus = {self.lora_plus:g}: not possible with optimizer = "{self.optimizer}", which '
                             "estimates one learning rate for all weights")  # fmt: skip
        if self.keep_exports and self.keep_exports_by == "validation" and not self.validation_share:
            raise TrainError('keep_exports_by = "validation": no samples are held out; set validation_share, or '
                             'keep_exports_by = "last"')  # fmt: skip
        if self.guidance_target != 1 and self.caption_dropout:
            found = f"guidance_target = {self.guidance_target:g} and caption_dropout = {self.caption_dropout:g}"
            raise TrainError(f"{found}: a dropped caption has no guidance; turn one of them off")
        if KINDS[self.adapter].applies_to_output:
            for name in ("dora", "adapter_dropout"):
                if getattr(self, name):
                    raise TrainError(f'{name} = {getattr(self, name)}: not possible with adapter = "{self.adapter}"')

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in JSON and TOML."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def objective(self, rules: int = RULES) -> ObjectiveSettings:
        """The settings of the objective, under the same names."""
        names = {f.name for f in fields(ObjectiveSettings)} - {"rules"}
        return ObjectiveSettings(**{name: getattr(self, name) for name in names}, rules=rules)

    def adapters(self) -> AdapterSettings:
        """The settings of the adapters."""
        axis = dora_axis(cast("Naming", self.naming)) if self.dora_axis == "auto" else self.dora_axis
        return AdapterSettings(
            kind=self.adapter,
            rank=self.rank,
            alpha=self.alpha or None,
            rank_stabilised=self.rank_stabilised,
            dropout=self.adapter_dropout,
            dora=self.dora,
            dora_axis=cast("Axis", axis),
            lokr_factor=self.lokr_factor or None,
            targets=self.targets,
            group_rates=self.group_rates,
            group_ranks=self.group_ranks,
            group_alphas=self.group_alphas,
            seed=self.seed,
        )

    def rates(self) -> Rates:
        """The numbers that optimizers take."""
        return Rates(**{f.name: getattr(self, f.name) for f in fields(Rates)})

    def optimizer_choice(self) -> OptimizerChoice:
        """The optimizer that is used."""
        return OptimizerChoice(self.optimizer, self.other_optimizer, self.optimizer_args)

    def curve(self, steps: int, rules: int = RULES) -> Curve:
        """The learning rate over a run of this many steps."""
        shape = (self.lr_cycles, self.lr_power, self.lr_floor)
        return Curve(self.lr_schedule, steps, self.warmup_steps, *shape, warmup_from_zero=rules > 1)


def _default(declared: Field[Any]) -> Any:
    return declared.default_factory() if callable(declared.default_factory) else declared.default


TRAIN_SETTINGS: dict[str, Setting] = {
    f.name: Setting(f.name, type_of(f.type), _default(f), f.metadata["limits"]) for f in fields(TrainConfig)
}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
