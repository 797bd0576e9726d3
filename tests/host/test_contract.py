"""The names of ComfyUI that the pack uses, in the real ComfyUI and in one that renamed some."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("contract_claims")


@pytest.mark.parametrize("claim", names_in("contract_claims"))
def test_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]
