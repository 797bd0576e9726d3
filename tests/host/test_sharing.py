"""One cache used by several: workflows that save and read it, other processes, the stop button, and cleaning."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.cli.remote.comfy_server import Event
from streamcache.dataset_cache import (
    CacheBusy,
    CacheWriter,
    FolderSource,
    Part,
    Settings,
    encode,
    gather,
    make_plan,
    open_cache,
)
from streamcache.reference import ReferenceImageEncoder
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_picture, write_pictures
from streamcache.tests.host.server import Server
from streamcache.tests.host.test_dataset_nodes import cache_path, saved, write_lists

pytestmark = pytest.mark.host


def test_a14_stopping_keeps_what_was_encoded_and_publishes_nothing(server: Server):
    folder = server.base / "input" / "stopped"
    folder.mkdir()
    for number in range(24):
        write_picture(folder / f"{number:02}.png", (64, 64), seed=number)
    graph = Graph(server)
    node = save_folder(graph, "input/stopped", "stopped", batch_size=2)

    def stop(event: Event) -> None:
        if event.kind == "progress" and event.node == node and event.total == 24 and event.done >= 6:
            server.client.interrupt()

    outcome = server.client.run(graph.prompt, stop)
    assert outcome.status == "interrupted"
    path = cache_path(server, "stopped")
    assert not (path / "dataset.json").exists(), "readers see only complete saves"
    facts = saved(server.succeed(graph.prompt), node)
    assert facts["samples"] == 24
    assert 0 < facts["encoded"]["latent"] <= 18
    assert facts["encoded"]["latent"] + facts["reused"]["latent"] == 24
    assert "conditioning" not in facts["encoded"]


def test_a_reader_keeps_its_generation_while_a_workflow_saves_and_another_reads(server: Server):
    folder = write_pictures(server.base / "input" / "keeps_generation", count=2)
    graph = Graph(server)
    node = save_folder(graph, "input/keeps_generation", "keeps_generation", texts=False)
    server.succeed(graph.prompt)
    path = cache_path(server, "keeps_generation")
    reader = open_cache(path)  # another process trains on it
    before = [sample.realize().latent["samples"] for sample in reader]
    write_picture(folder / "0.png", (64, 64), seed=1234)
    write_picture(folder / "7.png", (64, 64), seed=4321)
    second = Graph(server)
    load = second.add("StreamCacheCacheLoad", name="keeps_generation")
    chosen = second.add("StreamCacheSelect", dataset=second(load))
    probe = second.add("ProbeStructure", latent=second(chosen, 1))
    outcomes = [server.client.queue(graph.prompt), server.client.queue(second.prompt)]
    outcomes = [server.client.wait(outcome) for outcome in outcomes]
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    assert saved(outcomes[0].outputs, node)["samples"] == 3
    assert len(outcomes[1].outputs[probe]["structure"]) == 3
    assert all(torch.equal(a, b.realize().latent["samples"]) for a, b in zip(before, reader, strict=True))
    assert len(open_cache(path)) == 3


def test_workflows_that_read_while_another_process_saves_never_see_two_generations_mixed(server: Server):
    path = cache_path(server, "rewritten")
    write_constant(path, 0)
    stop = threading.Event()

    def rewrite() -> None:
        value = 0
        while not stop.wait(0.05):
            value += 1
            write_constant(path, value)

    writer = threading.Thread(target=rewrite)
    writer.start()
    results: list[Any] = []
    try:
        for _ in range(8):
            graph = Graph(server)
            load = graph.add("StreamCacheCacheLoad", name="rewritten")
            chosen = graph.add("StreamCacheSelect", dataset=graph(load))
            probe = graph.add("ProbeStructure", latent=graph(chosen, 1))
            outcome = server.run(graph.prompt)
            results.append(outcome.outputs.get(probe, {}).get("structure") or outcome.error)
    finally:
        stop.set()
        writer.join()
    read = [result for result in results if not isinstance(result, str)]
    assert read
    for result in results:
        if isinstance(result, str):  # saved between loading and first use: an error with a remedy
            assert "saved again since it was loaded" in result
        else:
            assert len({sample["hash"] for sample in result}) == 1


def write_constant(path: Path, value: float) -> None:
    """All samples of a generation have one value."""
    with CacheWriter(path) as writer:
        for number in range(5):
            latent = {"samples": torch.full((1, 4, 4, 4), float(value))}
            writer.add(latent, [[torch.zeros(1, 2, 4), {}]], source=f"{value}-{number}")


def test_a_cache_that_another_process_saves_is_refused(server: Server):
    path = cache_path(server, "held")
    write_lists(cache_path(server, "free"), 2)
    gather([Part(open_cache(cache_path(server, "free")))], path)
    writer = CacheWriter(path)
    try:
        graph = Graph(server)
        load = graph.add("StreamCacheCacheLoad", name="free")
        graph.add("StreamCacheCacheSave", name="held", dataset=graph(load))
        assert "is writing to it; wait until it has finished" in server.fail(graph.prompt).error
    finally:
        writer.close()
    with pytest.raises(CacheBusy), CacheWriter(path), CacheWriter(path):
        pass


class TestClean:
    def clean(self, server: Server, name: str, **inputs: Any) -> str:
        graph = Graph(server)
        node = graph.add("StreamCacheClean", name=name, **inputs)
        return server.succeed(graph.prompt)[node]["text"][0]

    def test_a17_a_preview_removes_nothing_and_cleaning_removes_what_it_listed(self, server: Server):
        path = cache_path(server, "cleaned")
        write_lists(path, 6)
        open_cache(path)  # read once, so that leases are known to work here
        write_lists(path, 2)  # the other four are unused now
        before = sorted(file.name for file in path.rglob("*"))
        preview = self.clean(server, "cleaned", unused=True)
        assert preview.startswith("Would remove ") and " KB from cleaned" in preview
        assert sorted(file.name for file in path.rglob("*")) == before
        removed = self.clean(server, "cleaned", unused=True, apply=True)
        assert removed.splitlines()[1:] == preview.splitlines()[1:]
        assert removed.startswith("Removed ") and " KB from cleaned" in removed
        cache = open_cache(path, check=True)
        assert len([sample.realize() for sample in cache]) == 2
        assert cache.manifest.counts["unused"] == 0

    def test_entries_of_missing_folders_are_listed_and_removed(self, server: Server, tmp_path: Path):
        for number, folder in enumerate(("a", "b")):
            (tmp_path / "set" / folder).mkdir(parents=True)
            write_picture(tmp_path / "set" / folder / "0.png", (64, 64), seed=number)
        path = cache_path(server, "missing folder")
        for settings in (Settings(), Settings(allow_missing=True)):
            source = FolderSource(tmp_path / "set")
            encode(make_plan(source, image_encoder=ReferenceImageEncoder(), settings=settings), path)
            shutil.rmtree(tmp_path / "set" / "b", ignore_errors=True)
        preview = self.clean(server, "missing folder", unused=True, missing=True)
        assert "entries of missing folders, " in preview and "set/b was missing" in preview
        removed = self.clean(server, "missing folder", missing=True, apply=True)
        assert "entries of missing folders, " in removed and removed.startswith("Removed ")
        assert "missing" not in open_cache(path).manifest.provenance["encode"]

    def test_it_is_not_blocked_by_cached_results(self, server: Server):
        path = cache_path(server, "cleaned while kept")
        write_lists(path, 4)
        graph = Graph(server)
        load = graph.add("StreamCacheCacheLoad", name="cleaned while kept")
        chosen = graph.add("StreamCacheSelect", dataset=graph(load))
        graph.add("ProbeStructure", latent=graph(chosen, 1))
        server.succeed(graph.prompt)
        write_lists(path, 1)
        assert self.clean(server, "cleaned while kept", unused=True, apply=True).startswith("Removed")
        assert len(server.succeed(graph.prompt)["3"]["structure"]) == 1

    def test_it_is_refused_while_a_process_reads_what_would_be_removed(self, server: Server):
        path = cache_path(server, "read")
        write_lists(path, 3)
        reader = open_cache(path)
        write_lists(path, 1)
        graph = Graph(server)
        graph.add("StreamCacheClean", name="read", apply=True)
        outcome = server.run(graph.prompt)
        assert len([sample.realize() for sample in reader]) == 3
        assert "process" in outcome.error or "in use by" in outcome.outputs["1"]["text"][0]

    def test_an_empty_selection_is_reported(self, server: Server):
        write_lists(cache_path(server, "whole"), 1)
        graph = Graph(server)
        graph.add("StreamCacheClean", name="whole", debris=False, superseded=False, unused=False)
        assert "nothing is selected" in server.fail(graph.prompt).error
