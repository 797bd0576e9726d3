"""Fixtures of the tests of sources."""

import pytest

from ...support.fixtures import settle


@pytest.fixture
def tree(tmp_path, picture):
    for name in ("b/2.png", "b/1.png", "a/9.jpg", "0.png"):
        picture(f"set/{name}", size=(16, 16), caption=name)
    settle()
    return tmp_path / "set"
