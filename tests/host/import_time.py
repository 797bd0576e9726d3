"""Scenario: how long importing the pack takes in ComfyUI, after everything that ComfyUI imports itself."""

import gc
import importlib
import sys
import time
from pathlib import Path

EXTENSION = "streamcache.nodes.extension"
REPEATS = 3


def run(base: Path) -> dict:
    import server  # noqa: F401  ComfyUI loads it before any pack

    # As at every start but the first: Python has already compiled the files.
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(base / "bytecode")
    importlib.import_module(EXTENSION)
    return {"seconds": min(import_again() for _ in range(REPEATS))}  # the least disturbed by other programs


def import_again() -> float:
    """CPU seconds of an import."""
    for name in [name for name in sys.modules if name.startswith("streamcache.") and ".tests" not in name]:
        del sys.modules[name]
    gc.collect()  # now, not by chance during the import
    started = time.process_time()
    importlib.import_module(EXTENSION)
    return time.process_time() - started
