"""Inside ComfyUI: families whose code was not written for training."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("gradient_claims")


@pytest.mark.parametrize("claim", names_in("gradient_claims"))
def test_of_a_family_that_was_not_written_for_training(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]
