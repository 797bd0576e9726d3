"""Registers the repository's root as the package `streamcache`, as the host does under the folder's own name."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

if "streamcache" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "streamcache", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["streamcache"] = package
    spec.loader.exec_module(package)

from .support.fixtures import images, nursery, picture, platform, state_dir, texts  # noqa: E402, F401


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow; `python dev.py test --slow` runs it")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)
