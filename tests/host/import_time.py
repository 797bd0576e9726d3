"""Scenario: how long the pack's import takes in the host, after all that the host imports by itself."""

import importlib
import sys
import time
from pathlib import Path

EXTENSION = "streamcache.nodes.extension"


def run(base: Path) -> dict:
    import server  # noqa: F401  the host's own, which is there before any pack is loaded

    # As at every start but the first: Python has compiled the files before.
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(base / "bytecode")
    importlib.import_module(EXTENSION)
    for name in [name for name in sys.modules if name.startswith("streamcache.") and ".tests" not in name]:
        del sys.modules[name]
    started = time.process_time()
    importlib.import_module(EXTENSION)
    return {"seconds": time.process_time() - started}
