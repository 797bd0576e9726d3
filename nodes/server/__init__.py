"""What the pack's pages show and do: caches, their samples, trash, jobs and runs, without the host."""

from .curves import thin
from .live_runs import RUNS, LiveRun
from .moves import let_go
from .runs import sample_mtime

__all__ = [
    "RUNS",
    "LiveRun",
    "add_routes",
    "let_go",
    "sample_mtime",
    "thin",
]


def add_routes() -> None:
    """Register all routes with the running server. Only this needs the host; the rest of the room is tested without."""
    from .routes import register_routes

    register_routes()
