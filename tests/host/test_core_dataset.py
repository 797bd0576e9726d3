"""The files of ComfyUI's Save Training Dataset convert to a cache with the same values."""

from collections.abc import Callable
from pathlib import Path

import pytest

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.foreign.convert import convert
from streamcache.tests.host.difference import difference
from streamcache.tests.host.families import FAMILIES

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("core_dataset")


@pytest.mark.parametrize("form", ["single", "bucketed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_c11_the_hosts_own_dataset_converts_to_what_its_nodes_were_given(outcome: dict, family: str, form: str) -> None:
    assert outcome[family][form] == outcome[family]["expected"]
    assert outcome[family][f"{form} difference"] is None


@pytest.mark.parametrize("family", FAMILIES)
def test_c11_another_torch_version_converts_the_hosts_dataset_identically(
    outcome: dict, base: Path, tmp_path: Path, family: str
) -> None:
    convert(base / "datasets" / family / "single", tmp_path / "here")
    here, there = open_cache(tmp_path / "here"), open_cache(base / "converted" / family / "single")
    for i in range(outcome[family]["expected"]):
        a, b = here[i].realize(), there[i].realize()
        assert difference([a.latent, a.conditioning], [b.latent, b.conditioning]) is None
