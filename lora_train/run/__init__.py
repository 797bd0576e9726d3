"""The run folder: states, metrics, plots."""

from .folder import Run, check_name, is_held, open_run, read_description
from .metrics import Curves, MetricsFile, Progress, Reporter, format_seconds, open_events, read_curves
from .plots import BLUE, ORANGE, draw_grid, plot_buckets, plot_loss, plot_share
from .saved_state import Origin, State, StateFolder, check_origin, resumed_position

__all__ = [
    "BLUE",
    "ORANGE",
    "Curves",
    "MetricsFile",
    "Origin",
    "Progress",
    "Reporter",
    "Run",
    "State",
    "StateFolder",
    "check_name",
    "check_origin",
    "draw_grid",
    "format_seconds",
    "is_held",
    "open_events",
    "open_run",
    "plot_buckets",
    "plot_loss",
    "plot_share",
    "read_curves",
    "read_description",
    "resumed_position",
]
