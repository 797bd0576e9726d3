"""Train an adapter on a denoiser from a cached dataset."""

from .adapters import build_network, read_lora, select_modules
from .config import RENAMED, SETTINGS, TrainConfig, load_config, read_config
from .data import map_tensors
from .denoiser import Denoiser, Naming, Prediction, Prepared, Schedule
from .errors import TrainError
from .loop import Hooks, Result, Watch, train, train_in_run, with_samples
from .memory import choose_precision, replaced_forward
from .noise_schedule import SNR_BOUND, DiffusionSchedule, FlowSchedule, rows, scaled_linear_alphas
from .objective import EPS_PER_NATIVE, ObjectiveSettings, draw_noise, draw_times, row_losses
from .report_page import Section, render_page
from .run import (
    Curves,
    Progress,
    Run,
    check_name,
    draw_grid,
    format_seconds,
    is_held,
    open_run,
    plot_buckets,
    plot_loss,
    read_curves,
    read_description,
)
from .samples import Decode, Prompt, file_name
from .session import EMPTY_CAPTION
from .step import Ema

__all__ = [
    "EMPTY_CAPTION",
    "EPS_PER_NATIVE",
    "RENAMED",
    "SETTINGS",
    "SNR_BOUND",
    "Curves",
    "Decode",
    "Denoiser",
    "DiffusionSchedule",
    "Ema",
    "FlowSchedule",
    "Hooks",
    "Naming",
    "ObjectiveSettings",
    "Prediction",
    "Prepared",
    "Progress",
    "Prompt",
    "Result",
    "Run",
    "Schedule",
    "Section",
    "TrainConfig",
    "TrainError",
    "Watch",
    "build_network",
    "check_name",
    "choose_precision",
    "draw_grid",
    "draw_noise",
    "draw_times",
    "file_name",
    "format_seconds",
    "is_held",
    "load_config",
    "map_tensors",
    "open_run",
    "plot_buckets",
    "plot_loss",
    "read_config",
    "read_curves",
    "read_description",
    "read_lora",
    "render_page",
    "replaced_forward",
    "row_losses",
    "rows",
    "scaled_linear_alphas",
    "select_modules",
    "train",
    "train_in_run",
    "with_samples",
]
