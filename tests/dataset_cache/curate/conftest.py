"""Fixtures of the tests of curation: a folder with three captioned images."""

import os
from pathlib import Path

import pytest

from streamcache.dataset_cache.curate import FolderView, SourceFolder

from ...support.fixtures import settle


@pytest.fixture
def cats(tmp_path: Path, picture) -> Path:
    picture("cats/a.png", caption="a cat, sitting")
    picture("cats/b.png", caption="a cat\nthe cat, asleep")
    picture("cats/sub/c.png")
    settle()
    return tmp_path / "cats"


@pytest.fixture
def view(cats: Path):
    """The folder as it is now."""

    def read(path: Path = cats) -> FolderView:
        return SourceFolder(path).read()

    return read


@pytest.fixture
def make_pipe():
    def make(path: Path) -> Path:
        if not hasattr(os, "mkfifo"):
            pytest.skip("no pipes with names here")
        os.mkfifo(path)
        return path

    return make
