"""Source Images and Write Captions: images of a folder go through nodes of ComfyUI, and their texts become captions."""

from pathlib import Path
from typing import Any

import pytest

from streamcache.dataset_cache import open_cache
from streamcache.tests.host.graph import Graph, loaders
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.host


def captioning(graph: Graph, folder: str, images: str = "all", **write: Any) -> str:
    """Source Images → a text per image → Write Captions; returns the id of the last."""
    listed = graph.add("StreamCacheSourceImages", folder=folder, images=images, max_side=32)
    size = graph.add("GetImageSize", image=graph(listed))
    width = graph.add("PreviewAny", source=graph(size))
    text = graph.add("StringConcatenate", string_a="seen", string_b=graph(width), delimiter=" ")
    source = graph.add("StreamCacheImageFolder", folder=folder)
    links = {"source": graph(source), "texts": graph(text), "names": graph(listed, 1)}
    return graph.add("StreamCacheWriteCaptions", **links, **write)


def captions(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))}


def test_texts_become_captions_that_the_same_prompt_encodes(server: Server):
    folder = write_pictures(server.base / "input" / "captioned")
    before = captions(folder)
    (folder / "2.txt").unlink()
    (folder / "4.txt").unlink()
    (folder / "streamcache.json").write_text('{"images": {"4.png": {"excluded": true}}}')
    graph = Graph(server)
    written = captioning(graph, "input/captioned")
    vae, clip = loaders(graph, "flow")
    links = {"source": graph(written), "vae": graph(vae), "clip": graph(clip)}
    plan = graph.add("StreamCacheEncode", **links, resolution=64, step="16", thumbnail=0)
    node = graph.add("StreamCacheCacheSave", name="captioned", dataset=graph(plan))
    outputs = server.succeed(graph.prompt)
    assert captions(folder) == {name: before[name] for name in "013"} | {"2": "seen 32"}
    assert outputs[written]["text"] == ["Wrote 1 caption\nKept 3 existing captions"]
    cache = open_cache(server.base / "output" / "streamcache" / "captioned")
    assert [cache.captions(i)[0] for i in range(len(cache))] == ["a cat", "a dog", "seen 32", "a cat"]
    (facts,) = outputs[node]["streamcache"]
    assert facts["chosen"] == ["captioned/4.png"] and facts["excluded"] == []
    assert "Excluded by choice: 1 image" in outputs[node]["text"][0]


def test_images_are_not_read_again_if_only_captions_changed(server: Server):
    folder = write_pictures(server.base / "input" / "recaptioned")
    graph = Graph(server)
    written = captioning(graph, "input/recaptioned", if_exists="replace")
    assert written in server.succeed(graph.prompt)
    assert set(captions(folder).values()) == {"seen 32", "seen 21"}
    events: list = []
    server.succeed(graph.prompt, events)
    executed = {graph.prompt[event.node]["class_type"] for event in events if event.kind == "node"}
    assert executed == {"StreamCacheImageFolder", "StreamCacheWriteCaptions"}


def test_if_every_image_has_a_caption_that_is_said(server: Server):
    write_pictures(server.base / "input" / "complete")
    graph = Graph(server)
    captioning(graph, "input/complete", "without caption")
    assert "has a caption for every image" in str(server.fail(graph.prompt))


def test_texts_that_do_not_fit_are_refused_and_nothing_is_written(server: Server):
    folder = write_pictures(server.base / "input" / "misfit")
    before = captions(folder)
    graph = Graph(server)
    source = graph.add("StreamCacheImageFolder", folder="input/misfit")
    text = graph.add("StringConcatenate", string_a="one", string_b="", delimiter="")
    graph.add("StreamCacheWriteCaptions", source=graph(source), texts=graph(text), if_exists="replace")
    assert "1 text for 5 images" in str(server.fail(graph.prompt))
    assert captions(folder) == before
