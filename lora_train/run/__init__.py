"""A run on disk: its folder, saved states, metrics and plots."""

from .folder import Run, check_run_name, is_run_locked, open_run, read_run_json
from .metrics import (
    Curves,
    MetricsFile,
    Reporter,
    TrainProgress,
    format_seconds,
    open_events,
    read_curves,
    smooth_curve,
    thin_curve,
)
from .plots import BLUE, ORANGE, draw_grid, plot_buckets, plot_loss, plot_share
from .saved_state import SavedState, StateFolder, StateOrigin, check_origin, resumed_position

__all__ = [
    "BLUE",
    "ORANGE",
    "Curves",
    "MetricsFile",
    "Reporter",
    "Run",
    "SavedState",
    "StateFolder",
    "StateOrigin",
    "TrainProgress",
    "check_origin",
    "check_run_name",
    "draw_grid",
    "format_seconds",
    "is_run_locked",
    "open_events",
    "open_run",
    "plot_buckets",
    "plot_loss",
    "plot_share",
    "read_curves",
    "read_run_json",
    "resumed_position",
    "smooth_curve",
    "thin_curve",
]
