"""Fixtures of the tests of sweeps and queues."""

from pathlib import Path

import pytest

from ...support.trainings import make_parts


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A folder with a dataset and a reference model."""
    make_parts(tmp_path)
    return tmp_path
