"""Train LoRAs and other adapters on a cache, with any model that fulfils the `Denoiser` protocol.

with open_run("runs", "my_run") as run:
    result = train(denoiser, open_cache("my_set"), TrainConfig(steps=2000, rank=16), run)

docs/training.md explains a run and has a complete example of a denoiser.
"""

from ..errors import TrainError
from . import recipes
from .adapters import build_network, read_lora
from .compute import Ema, generator_state, restore_generator, upload
from .config import TRAIN_SETTINGS, TrainConfig
from .config_file import RENAMED_SETTINGS, load_config, read_toml
from .denoiser import Denoiser, LayerRows, Naming, NoiseSchedule, Prediction, PreparedBatch
from .forecast import (
    Forecast,
    PeakMemory,
    Shapes,
    Untraceable,
    find_fitting,
    forecast_training,
    report_memory,
    room_on,
)
from .loop import TrainHooks, TrainResult, WatchRun, train, train_in_run, with_sample_images
from .memory import choose_precision, is_plain, replaced_forward
from .objective import (
    EPS_PER_NATIVE,
    SNR_BOUND,
    DiffusionSchedule,
    FlowSchedule,
    ObjectiveSettings,
    draw_noise,
    draw_times,
    per_row,
    row_losses,
    scaled_linear_alphas,
)
from .report_page import Section, render_page
from .run import (
    Curves,
    Run,
    TrainProgress,
    can_begin,
    check_run_name,
    draw_grid,
    format_seconds,
    hold_run,
    is_run_locked,
    latest_run,
    open_run,
    open_run_file,
    partial_lora,
    plot_buckets,
    plot_loss,
    read_curves,
    read_from,
    read_run_json,
    smooth_curve,
    thin_curve,
)
from .samples import Decode, Prompt, sample_file_name
from .session import check_training, rehearse

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
    "Forecast",
    "LayerRows",
    "Naming",
    "NoiseSchedule",
    "ObjectiveSettings",
    "PeakMemory",
    "Prediction",
    "PreparedBatch",
    "Prompt",
    "Run",
    "Section",
    "Shapes",
    "TrainConfig",
    "TrainError",
    "TrainHooks",
    "TrainProgress",
    "TrainResult",
    "Untraceable",
    "WatchRun",
    "build_network",
    "can_begin",
    "check_run_name",
    "check_training",
    "choose_precision",
    "draw_grid",
    "draw_noise",
    "draw_times",
    "find_fitting",
    "forecast_training",
    "format_seconds",
    "generator_state",
    "hold_run",
    "is_plain",
    "is_run_locked",
    "latest_run",
    "load_config",
    "open_run",
    "open_run_file",
    "partial_lora",
    "per_row",
    "plot_buckets",
    "plot_loss",
    "read_curves",
    "read_from",
    "read_lora",
    "read_run_json",
    "read_toml",
    "recipes",
    "rehearse",
    "render_page",
    "replaced_forward",
    "report_memory",
    "restore_generator",
    "room_on",
    "row_losses",
    "sample_file_name",
    "scaled_linear_alphas",
    "smooth_curve",
    "thin_curve",
    "train",
    "train_in_run",
    "upload",
    "with_sample_images",
]
