"""Inside ComfyUI: the memory forecast against measured peaks, and what makes a training need less."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in

pytestmark = pytest.mark.host
CLAIMS = names_in("memory_claims")


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("memory_claims")


@pytest.mark.parametrize("claim", [name for name in CLAIMS if "forecast" in name])
def test_j2_the_forecast_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]


@pytest.mark.parametrize("claim", [name for name in CLAIMS if "forecast" not in name])
def test_j3_less_memory_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]
