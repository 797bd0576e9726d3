"""Registers the repository's root as the package `streamcache`, as the host does under the folder's own name."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if "streamcache" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "streamcache", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["streamcache"] = package
    spec.loader.exec_module(package)
