"""How routes respond: off the event loop, and always in JSON."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("answers_claims")


@pytest.mark.parametrize("claim", names_in("answers_claims"))
def test_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]
