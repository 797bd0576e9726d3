"""Captions that share forwards of ComfyUI's text encoders."""

from collections.abc import Callable

import pytest

from streamcache.dataset_cache import open_cache
from streamcache.tests.host.claims import names_in
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server
from streamcache.tests.host.test_dataset_nodes import cache_path

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def outcome(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("text_claims")


@pytest.mark.parametrize("claim", names_in("text_claims"))
def test_a20_captions_share_forwards_on_the_host(outcome: dict, claim: str) -> None:
    assert outcome[claim] is None, outcome[claim]


@pytest.fixture(scope="module")
def families(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("text_family_claims")


@pytest.mark.parametrize("claim", names_in("text_family_claims"))
def test_a20_captions_share_forwards_in_every_family(families: dict, claim: str) -> None:
    assert families[claim] is None, families[claim]


def test_a20_captions_share_forwards_in_a_workflow(server: Server) -> None:
    write_pictures(server.base / "input" / "batched", seed=41)
    rows, caches = {}, {}
    for size in (8, 1):
        graph = Graph(server)
        save_folder(graph, "input/batched", f"batched {size}", "eps", text_batch_size=size)
        server.client.get("/probe/forwards")
        server.succeed(graph.prompt)
        rows[size] = server.client.get("/probe/forwards")
        caches[size] = open_cache(cache_path(server, f"batched {size}"))
    assert rows == {8: [6], 1: [1] * 6}
    keys = {size: [cache.keys(n) for n in range(len(cache))] for size, cache in caches.items()}
    assert keys[1] == keys[8], "the size of batches decides no key, so nothing is encoded again"


@pytest.fixture(scope="module")
def cuts(run_in_host: Callable[[str], dict]) -> dict:
    return run_in_host("cut_claims")


@pytest.mark.parametrize("claim", names_in("cut_claims"))
def test_captions_that_a_tokenizer_cuts_are_found(cuts: dict, claim: str) -> None:
    assert cuts[claim] is None, cuts[claim]
