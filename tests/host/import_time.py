"""Scenario: how long loading the pack takes in ComfyUI, after everything that ComfyUI imports itself."""

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
    # The least disturbed by other programs.
    return {"seconds": min(import_again() for _ in range(REPEATS)), "check": min(check() for _ in range(REPEATS))}


def check() -> float:
    """CPU seconds of the check of ComfyUI's names, which is part of the import below."""
    contract = importlib.import_module("streamcache.nodes.host.contract")
    started = time.process_time()
    contract.check_host()
    return time.process_time() - started


def import_again() -> float:
    """CPU seconds of an import, with the check of ComfyUI's names."""
    for name in [name for name in sys.modules if name.startswith("streamcache.") and ".tests" not in name]:
        del sys.modules[name]
    gc.collect()  # now, not by chance during the import
    started = time.process_time()
    importlib.import_module("streamcache.nodes.host.contract").check_host()
    importlib.import_module(EXTENSION)
    return time.process_time() - started
