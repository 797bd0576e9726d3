"""When nodes run again, on a server that caches many results: a cached result must match what is on disk."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache import dev
from streamcache.dataset_cache import open_cache
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server, install_pack, start_server
from streamcache.tests.host.test_training_over_http import (
    LONG,
    lora_path,
    metadata,
    run_facts,
    run_until,
    step_of,
    train_folder,
)

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def keeper(host: dev.Host, base: Path) -> Iterator[Server]:
    install_pack(base)
    running = start_server(host, base, "--cache-lru", "100")
    yield running
    running.stop()


def cache_path(server: Server, name: str) -> Path:
    return server.base / "output" / "streamcache" / name


def test_a_save_with_its_first_settings_again_runs_again(keeper: Server):
    write_pictures(keeper.base / "input" / "to_and_fro", count=2)
    graph = Graph(keeper)
    save_folder(graph, "input/to_and_fro", "to_and_fro", texts=False)
    encode = next(node for node in graph.prompt.values() if node["class_type"] == "StreamCacheEncode")
    sides = []
    for resolution in (64, 128, 64):
        encode["inputs"]["resolution"] = resolution
        keeper.succeed(graph.prompt)
        sides.append(open_cache(cache_path(keeper, "to_and_fro")).sample(0).latent["samples"].shape[-1])
    assert sides == [8, 16, 8]


class TestTraining:
    def test_a_stopped_run_continues_when_it_is_queued_again(self, keeper: Server):
        def stop(prompt: str) -> None:
            keeper.client.post("/streamcache/run/stop", {"name": "goes_on"})

        graph, node = train_folder(keeper, "flow", "goes_on", steps=LONG)
        steps: list[int] = []
        for mode in ("new", "resume"):
            graph.prompt[node]["inputs"]["mode"] = mode
            outcome = run_until(keeper, graph, lambda event: step_of(event) > sum(steps), stop)
            assert outcome.status == "done"
            steps.append(run_facts(keeper, "goes_on")["step"])
        assert 0 < steps[0] < steps[1] < LONG

    def test_a_deleted_lora_is_trained_again(self, keeper: Server):
        graph, _ = train_folder(keeper, "flow", "deleted")
        keeper.succeed(graph.prompt)
        written = lora_path(keeper, "deleted").stat().st_mtime_ns
        keeper.succeed(graph.prompt)
        assert lora_path(keeper, "deleted").stat().st_mtime_ns == written
        lora_path(keeper, "deleted").unlink()
        keeper.succeed(graph.prompt)
        assert metadata(lora_path(keeper, "deleted"))

    def test_a_cache_not_made_for_the_training_is_not_replaced(self, keeper: Server):
        write_pictures(keeper.base / "input" / "precious", count=2)
        graph = Graph(keeper)
        save_folder(graph, "input/precious", "precious", texts=False)
        keeper.succeed(graph.prompt)
        before = open_cache(cache_path(keeper, "precious")).generation
        graph, _ = train_folder(keeper, "flow", "precious", "not_precious")
        assert "was not made for this training" in keeper.fail(graph.prompt).error
        assert open_cache(cache_path(keeper, "precious")).generation == before
        shutil.rmtree(cache_path(keeper, "precious"))
        keeper.succeed(graph.prompt)
        lora_path(keeper, "precious").unlink()
        keeper.succeed(graph.prompt)  # it may reuse the cache that it made
