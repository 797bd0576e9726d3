"""Training on a ComfyUI that changes what it relies on: it is right, or it ends with a sentence."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in

pytestmark = pytest.mark.host
CLAIMS = names_in("hostile_claims")


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("hostile_claims")


@pytest.mark.parametrize("claim", [name for name in CLAIMS if name.startswith("layer")])
def test_j8_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]


@pytest.mark.parametrize("claim", [name for name in CLAIMS if not name.startswith("layer")])
def test_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]
