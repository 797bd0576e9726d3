"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest

from streamcache.dataset_cache import open_cache

from ..support.datasets import write_set
from ..support.fixtures import settle


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Saved with 5 samples, then with 3, and looked at in between."""
    folder = write_set(tmp_path / "my set ünï", range(5), provenance={"vae": "ä"})
    open_cache(folder)
    return write_set(folder, range(3))


@pytest.fixture
def encoding(tmp_path, picture) -> list[object]:
    """The command that encodes six images into `cache` with the reference encoders."""
    for n in range(6):
        picture(f"set/{n}.png", size=(96, 96 if n % 2 else 64), seed=n, caption=f"caption {n % 2}")
    settle()
    return ["encode", tmp_path / "set", "--to", tmp_path / "cache", "--reference", "--resolution", 64, "--step", 8]
