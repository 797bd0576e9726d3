"""Inside ComfyUI: training on the pretend accelerator."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("accelerator_claims")


@pytest.mark.parametrize("claim", names_in("accelerator_claims"))
def test_j1_models_of_the_host_on_an_accelerator(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]
