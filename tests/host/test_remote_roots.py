"""Registered remote roots in a real ComfyUI: Save pushes, Load opens, pages list, pull, push and sync."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamcache import dev
from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.travel import pull, push
from streamcache.tests.host.asking import get, post, wait_for_job
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.remote_server import STUDIO, server_with_root, use_state_of
from streamcache.tests.host.server import Server
from streamcache.tests.host.trainings import until
from streamcache.tests.support.datasets import content, write_set
from streamcache.tests.support.fault_proxy import STALL, FaultProxy
from streamcache.tests.support.s3_roots import SECRET

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def studio(host: dev.Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, FaultProxy]]:
    with server_with_root(host, tmp_path_factory.mktemp("remote")) as found:
        yield found


def remote(server: Server, name: str, **query: Any) -> dict[str, Any]:
    (root,) = get(server, "/remotes", again="true", **query).json["roots"]
    assert root["state"] == "ready", root
    return next(cache for cache in root["caches"] if cache["name"] == name)


def job(server: Server, path: str, **values: Any) -> dict[str, Any]:
    answer = post(server, path, values)
    assert answer.status == 200, answer.error
    return wait_for_job(server, answer.json["job"]["id"])


def folder(server: Server, name: str) -> Path:
    return server.base / "output" / "streamcache" / name


@pytest.fixture(autouse=True)
def own_state(studio: tuple[Server, FaultProxy], state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_state_of(studio[0], monkeypatch)


def test_f4_save_pushes_to_a_root_and_load_opens_it_there(studio: tuple[Server, FaultProxy]):
    server, _ = studio
    write_pictures(server.base / "input" / "pushed")
    graph = Graph(server)
    save_folder(graph, "input/pushed", "pushed", texts=False)
    saving = next(node for node in graph.prompt.values() if node["class_type"] == "StreamCacheCacheSave")
    saving["inputs"]["push_to"] = "studio"
    shown = server.succeed(graph.prompt)
    assert "Pushed" in json.dumps(shown) and SECRET not in json.dumps(shown)
    assert content(open_cache(f"{STUDIO}/pushed")) == content(folder(server, "pushed"))
    load = {"1": {"class_type": "StreamCacheCacheLoad", "inputs": {"name": "studio/pushed"}}}
    load["2"] = {"class_type": "PreviewAny", "inputs": {"source": ["1", 1]}}
    assert "5" in json.dumps(server.succeed(load))
    until(lambda: "studio/pushed" in json.dumps(server.client.get("/object_info/StreamCacheCacheLoad")))


def test_f6_a_page_pulls_pushes_and_syncs(studio: tuple[Server, FaultProxy], tmp_path: Path):
    server, _ = studio
    push(write_set(tmp_path / "set", range(4)), f"{STUDIO}/cats")
    assert remote(server, "studio/cats")["local"] == "none"
    done = job(server, "/remote/pull", remote="studio/cats", name="studio/cats")
    assert (done["state"], done["counts"]["files"]) == ("done", 3)
    assert content(folder(server, "studio/cats")) == content(tmp_path / "set")
    assert (row := remote(server, "studio/cats"))["relation"] == "same" and row["local_name"] == "studio/cats"
    write_set(folder(server, "studio/cats"), range(6))
    assert remote(server, "studio/cats")["relation"] == "ahead"
    assert job(server, "/remote/push", name="studio/cats", remote="studio/cats")["state"] == "done"
    write_set(folder(server, "studio/cats"), range(7))
    pull(f"{STUDIO}/cats", tmp_path / "set")
    push(write_set(tmp_path / "set", range(3)), f"{STUDIO}/cats")
    assert remote(server, "studio/cats")["relation"] == "apart"
    refused = job(server, "/remote/sync", name="studio/cats", remote="studio/cats")
    assert refused["state"] == "failed" and "both sides have changed" in refused["error"]
    assert job(server, "/remote/sync", name="studio/cats", remote="studio/cats", keep="local")["state"] == "done"
    assert len(open_cache(f"{STUDIO}/cats")) == 7


@pytest.mark.parametrize("path", ["/remote/push", "/remote/pull", "/remote/sync"])
@pytest.mark.parametrize(
    "place",
    [
        *("http://169.254.169.254/latest", "s3://bucket/sets/cats", "//10.0.0.1/x", "elsewhere/cats", "studio"),
        *("studio/../other", "studio/..", "studio//x", "studio/%2e%2e%2f\x00", "../studio/x", "studio\\..\\x", ""),
    ],
)
def test_f7_requests_name_registered_roots_only(studio: tuple[Server, FaultProxy], path: str, place: str):
    server, proxy = studio
    write_set(folder(server, "mine"), range(2))
    proxy.clear()
    answer = post(server, path, {"name": "mine", "remote": place})
    assert answer.status == 400 and answer.error and proxy.seen == []


def test_f7_a_workflow_names_registered_roots_only(studio: tuple[Server, FaultProxy]):
    server, proxy = studio
    proxy.clear()
    for name in ("http://169.254.169.254/latest", "s3://bucket/sets/pushed", "elsewhere/pushed", "studio/../x"):
        load = {"1": {"class_type": "StreamCacheCacheLoad", "inputs": {"name": name}}}
        load["2"] = {"class_type": "PreviewAny", "inputs": {"source": ["1", 1]}}
        assert server.run(load).status == "refused"
    for root in ("http://169.254.169.254", "s3://bucket", "elsewhere", "studio/.."):
        graph = Graph(server)
        save_folder(graph, "input/pushed", "pushed", texts=False)
        saving = next(node for node in graph.prompt.values() if node["class_type"] == "StreamCacheCacheSave")
        saving["inputs"]["push_to"] = root
        assert server.run(graph.prompt).status == "refused"
    assert all("sets" in seen.path for seen in proxy.seen), "only the list of what is there"


def test_a_bad_name_is_blamed_on_the_name_alone_and_an_unknown_root_on_push_to(studio: tuple[Server, FaultProxy]):
    server, _ = studio
    write_pictures(server.base / "input" / "blamed")
    for values, blamed in (({"name": "../x"}, "name"), ({"push_to": "elsewhere"}, "push_to")):
        graph = Graph(server)
        save_folder(graph, "input/blamed", "blamed", texts=False)
        saving = next(node for node in graph.prompt.values() if node["class_type"] == "StreamCacheCacheSave")
        saving["inputs"] |= {"push_to": "studio"} | values
        outcome = server.run(graph.prompt)
        assert outcome.status == "refused" and blamed in outcome.error
        assert outcome.error.count("StreamCacheCacheSave") == 1, outcome.error
        assert ("push_to" in outcome.error) == (blamed == "push_to"), outcome.error


def test_a_root_that_does_not_answer_blocks_no_page(studio: tuple[Server, FaultProxy]):
    server, proxy = studio
    proxy.fault = lambda seen, number: STALL
    try:
        until(lambda: get(server, "/remotes", again="true").json["roots"][0]["state"] == "reading")
        assert get(server, "/caches").status == 200
    finally:
        proxy.fault = lambda seen, number: None
        proxy.released.set()
