"""Latents that other trainers scaled, on the real ComfyUI."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in
from streamcache.tests.host.latent_space_claims import FORMATS

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("latent_space_claims")


@pytest.mark.parametrize("claim", names_in("latent_space_claims"))
@pytest.mark.parametrize("space", FORMATS)
def test_f9_on_the_host(outcome: dict, space: str, claim: str) -> None:
    assert outcome[space][claim] is None, outcome[space][claim]
