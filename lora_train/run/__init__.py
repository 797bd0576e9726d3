"""A run on disk: its folder, saved states, metrics and plots."""

from .events import Events, check_events
from .exports import Export, list_exports
from .folder import (
    Run,
    can_begin,
    check_run_name,
    hold_run,
    is_run_locked,
    latest_run,
    open_run,
    partial_lora,
    read_run_json,
)
from .metrics import (
    Curves,
    MetricsFile,
    Reporter,
    TrainProgress,
    format_seconds,
    read_curves,
    smooth_curve,
    thin_curve,
)
from .plots import BLUE, ORANGE, draw_grid, plot_buckets, plot_curve, plot_loss, plot_share
from .run_files import may_be_file, open_run_file, read_from
from .saved_state import SavedState, StateFolder, StateOrigin, check_origin, resumed_position
from .signals import signals_held

__all__ = [
    "BLUE",
    "ORANGE",
    "Curves",
    "Events",
    "Export",
    "MetricsFile",
    "Reporter",
    "Run",
    "SavedState",
    "StateFolder",
    "StateOrigin",
    "TrainProgress",
    "can_begin",
    "check_events",
    "check_origin",
    "check_run_name",
    "draw_grid",
    "format_seconds",
    "hold_run",
    "is_run_locked",
    "latest_run",
    "list_exports",
    "may_be_file",
    "open_run",
    "open_run_file",
    "partial_lora",
    "plot_buckets",
    "plot_curve",
    "plot_loss",
    "plot_share",
    "read_curves",
    "read_from",
    "read_run_json",
    "resumed_position",
    "signals_held",
    "smooth_curve",
    "thin_curve",
]
