"""Registers the repository as the package `streamcache`, and skips slow tests without --slow."""

import pytest

from .support.package import register_package

register_package()

from .support.fixtures import images, nursery, picture, platform, s3, s3_address, state_dir, texts  # noqa: E402, F401


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow; `python dev.py test --slow` runs it")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)
