"""ComfyUI's blocks, compiled."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in

pytestmark = [pytest.mark.host, pytest.mark.slow]


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("compile_claims")


@pytest.mark.parametrize("claim", names_in("compile_claims"))
def test_j3_compiled_blocks_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]
