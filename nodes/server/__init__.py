"""The server side of the pack's pages: caches, their samples, the trash, jobs and training runs."""

from .curves import thin_points
from .live_runs import RUNS, LiveRun
from .moves import close_unused
from .runs import sample_mtime

__all__ = [
    "RUNS",
    "LiveRun",
    "add_routes",
    "close_unused",
    "sample_mtime",
    "thin_points",
]


def add_routes() -> None:
    """Register all routes with the running server. Only this needs ComfyUI, so it is imported late."""
    from .routes import register_routes

    register_routes()
