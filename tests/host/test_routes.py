"""The routes on the real server: what pages ask for is answered, and what they do is done."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from streamcache.tests.host.asking import get, snapshot
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def shown(server: Server) -> Iterator[dict[str, Any]]:
    """A cache made by a workflow, and its row."""
    write_pictures(server.base / "input" / "shown")
    graph = Graph(server)
    save_folder(graph, "input/shown", "shown", texts=False)
    server.succeed(graph.prompt)
    yield row(server, "shown")


def row(server: Server, name: str) -> dict[str, Any] | None:
    rows = get(server, "/caches").json["caches"]
    return next((each for each in rows if each["name"] == name), None)


def cache_folder(server: Server, name: str) -> Path:
    return server.base / "output" / "streamcache" / name


class TestLooking:
    def test_a_saved_cache_is_listed(self, shown: dict[str, Any]):
        assert shown["samples"] == 5 and shown["problem"] == "" and shown["thumbnails"]
        assert {bucket["name"] for bucket in shown["buckets"]} <= {"64×64", "80×48", "48×80"}
        assert shown["sources"] == "present" and set(shown["encoders"]) == {"latent"}

    def test_its_details_are_shown(self, server: Server, shown: dict[str, Any]):
        detail = get(server, "/cache", name="shown").json
        assert detail["row"]["generation"] == shown["generation"]
        assert {field["name"] for field in detail["fields"]} == {"latent", "thumbnail"}
        assert detail["captions"]["total"] == 6

    def test_its_samples_are_found(self, server: Server, shown: dict[str, Any]):
        page = get(server, "/cache/samples", name="shown", generation=shown["generation"], search="CAT").json
        assert page["total"] == 2 and {sample["captions"][0] for sample in page["samples"]} == {"a cat"}
        assert get(server, "/cache/samples", name="shown", generation="0" * 32).status == 409

    def test_its_thumbnails_last(self, server: Server, shown: dict[str, Any]):
        answer = get(server, "/cache/thumbnail", name="shown", generation=shown["generation"], number=0)
        assert answer.headers["content-type"] == "image/jpeg" and "immutable" in answer.headers["cache-control"]
        assert max(Image.open(io.BytesIO(answer.data)).size) == 64

    def test_looking_changes_nothing(self, server: Server, shown: dict[str, Any]):
        before = snapshot(server.base)
        for path in ("/cache", "/cache/samples"):
            assert get(server, path, name="shown").status == 200
        assert get(server, "/cache/thumbnail", name="shown", number=1).status == 200
        assert get(server, "/caches").status == 200
        assert snapshot(server.base) == before
