"""Fixtures of the tests of adapters."""

import pytest
import torch

from .toy import Toy


@pytest.fixture
def toy():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Toy().requires_grad_(False)
