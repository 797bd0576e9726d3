"""Prompts as text on Train LoRA, on the real ComfyUI."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in
from streamcache.tests.host.families import FAMILIES

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("prompt_claims")


@pytest.mark.parametrize("claim", names_in("prompt_claims"))
@pytest.mark.parametrize("family", FAMILIES)
def test_on_the_host(outcome: dict, family: str, claim: str) -> None:
    assert outcome[family][claim] is None, outcome[family][claim]
