"""Captions of ComfyUI's text encoders without their padding: what is saved, and that training does not notice."""

from collections.abc import Callable

import pytest

from streamcache.tests.host.claims import names_in

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("trimmed_text_claims")


@pytest.mark.parametrize("claim", names_in("trimmed_text_claims"))
def test_f10_text_without_padding_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]
