"""Train LoRAs and other adapters on a cache, with any model that fulfils the `Denoiser` protocol.

with open_run("runs", "my_run", mode="resume") as run:
    result = train(denoiser, open_cache("my_set"), TrainConfig(steps=2000, rank=16), run)

docs/training.md explains a run and has a complete example of a denoiser.
"""

from .adapters import build_network, read_lora, select_modules
from .config import RENAMED_SETTINGS, TRAIN_SETTINGS, TrainConfig, load_config, read_toml
from .denoiser import Denoiser, Naming, NoiseSchedule, Prediction, PreparedBatch
from .errors import TrainError
from .loop import TrainHooks, TrainResult, WatchRun, train, train_in_run, with_sample_images
from .memory import choose_precision, replaced_forward
from .noise_schedule import SNR_BOUND, DiffusionSchedule, FlowSchedule, per_row, scaled_linear_alphas
from .objective import EPS_PER_NATIVE, ObjectiveSettings, draw_noise, draw_times, row_losses
from .report_page import Section, render_page
from .run import (
    Curves,
    Run,
    TrainProgress,
    check_run_name,
    draw_grid,
    format_seconds,
    is_run_locked,
    open_run,
    plot_buckets,
    plot_loss,
    read_curves,
    read_run_json,
    smooth_curve,
    thin_curve,
)
from .samples import Decode, Prompt, sample_file_name
from .step import Ema

__all__ = [
    "EPS_PER_NATIVE",
    "RENAMED_SETTINGS",
    "SNR_BOUND",
    "TRAIN_SETTINGS",
    "Curves",
    "Decode",
    "Denoiser",
    "DiffusionSchedule",
    "Ema",
    "FlowSchedule",
    "Naming",
    "NoiseSchedule",
    "ObjectiveSettings",
    "Prediction",
    "PreparedBatch",
    "Prompt",
    "Run",
    "Section",
    "TrainConfig",
    "TrainError",
    "TrainHooks",
    "TrainProgress",
    "TrainResult",
    "WatchRun",
    "build_network",
    "check_run_name",
    "choose_precision",
    "draw_grid",
    "draw_noise",
    "draw_times",
    "format_seconds",
    "is_run_locked",
    "load_config",
    "open_run",
    "per_row",
    "plot_buckets",
    "plot_loss",
    "read_curves",
    "read_lora",
    "read_run_json",
    "read_toml",
    "render_page",
    "replaced_forward",
    "row_losses",
    "sample_file_name",
    "scaled_linear_alphas",
    "select_modules",
    "smooth_curve",
    "thin_curve",
    "train",
    "train_in_run",
    "with_sample_images",
]
