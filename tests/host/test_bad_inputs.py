"""Errors are shown on the node with a remedy, and the server keeps running."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import CacheWriter
from streamcache.tests.host.families import FAMILIES
from streamcache.tests.host.graph import Graph, loaders, save_folder
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server
from streamcache.tests.host.test_dataset_nodes import cache_path, write_lists
from streamcache.tests.nodes.library.test_paths import ATTACKS

pytestmark = pytest.mark.host
# A trailing space is stripped, as a typing error.
NAMES = [name for name in ATTACKS if name.isprintable() and len(name) < 60 and name != "trailing "]


@pytest.fixture(scope="module")
def lists(server: Server) -> str:
    write_lists(cache_path(server, "bad inputs"), 3)
    return "bad inputs"


def everything_below(folder: Path) -> set[str]:
    """Without leases, which come and go with readers."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if ".leases" not in path.parts}


@pytest.mark.parametrize("name", NAMES)
def test_a_widget_with_a_path_attack_is_refused_and_touches_nothing(server: Server, lists: str, name: str):
    before = everything_below(server.base / "output"), everything_below(server.base.parent)
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name=lists)
    wanted = [
        graph.add("StreamCacheCacheSave", name=name, dataset=graph(load)),
        graph.add("StreamCacheMerge", name=name, **{"datasets.dataset0": graph(load)}),
        graph.add("StreamCacheClean", name=name, apply=True),
        graph.add("StreamCachePreview", dataset=graph(graph.add("StreamCacheCacheLoad", name=name))),
    ]
    # One at a time: the server names only what it finds wrong with the first.
    for node in wanted:
        kept = {load, node, *(link[0] for link in graph.prompt[node]["inputs"].values() if isinstance(link, list))}
        error = server.fail({number: graph.prompt[number] for number in kept}).error
        assert "name" in error, error
    assert before == (everything_below(server.base / "output"), everything_below(server.base.parent))


@pytest.mark.parametrize("folder", ["../models", "/etc", "input/../../models", "nowhere", "CON", "C:\\Windows"])
def test_a_source_folder_outside_of_its_roots_is_refused(server: Server, folder: str):
    graph = Graph(server)
    save_folder(graph, folder, "never")
    error = server.fail(graph.prompt).error
    assert "folder" in error
    assert not cache_path(server, "never").exists()


def fail_with(server: Server, graph: Graph, words: str) -> None:
    outcome = server.fail(graph.prompt)
    assert words in outcome.error, outcome.error


def test_c9_a_missing_cache_is_reported(server: Server, lists: str):
    graph = Graph(server)
    graph.add("StreamCachePreview", dataset=graph(graph.add("StreamCacheCacheLoad", name="no such set")))
    fail_with(server, graph, "cache 'no such set' not found; save it first, or choose one of")


def test_a_cache_removed_since_it_was_loaded_is_reported(server: Server):
    path = cache_path(server, "removed")
    write_lists(path, 2)
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name="removed")
    chosen = graph.add("StreamCacheSelect", dataset=graph(load))
    graph.add("ProbeStructure", latent=graph(chosen, 1))
    server.succeed(graph.prompt)
    shutil.rmtree(path)
    fail_with(server, graph, "cache 'removed' not found")


def test_a_damaged_cache_is_reported(server: Server):
    path = cache_path(server, "damaged")
    write_lists(path, 2)
    (path / "dataset.json").write_text((path / "dataset.json").read_text()[:200])
    graph = Graph(server)
    graph.add("StreamCachePreview", dataset=graph(graph.add("StreamCacheCacheLoad", name="damaged")))
    fail_with(server, graph, "is not JSON")


def test_nothing_to_save_is_reported(server: Server):
    graph = Graph(server)
    graph.add("StreamCacheCacheSave", name="empty")
    fail_with(
        server, graph, "nothing to save: connect a dataset (from Encode Dataset or Streamable Cache Load), or latents"
    )
    assert not cache_path(server, "empty").exists()


def test_lists_of_different_lengths_are_refused(server: Server, lists: str):
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name=lists)
    three, one = (graph.add("StreamCacheSelect", dataset=graph(load), limit=limit) for limit in (3, 1))
    graph.add("StreamCacheCacheSave", name="uneven", latents=graph(three, 1), conditioning=graph(one, 2))
    fail_with(server, graph, "3 latents and 1 conditionings")


def test_a_dataset_and_lists_at_once_are_refused(server: Server, lists: str):
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name=lists)
    chosen = graph.add("StreamCacheSelect", dataset=graph(load))
    links = {"latents": graph(chosen, 1), "conditioning": graph(chosen, 2)}
    graph.add("StreamCacheCacheSave", name="both", dataset=graph(load), **links)
    fail_with(server, graph, "connect only one of them")


def test_two_nodes_that_save_to_one_name_are_refused(server: Server, lists: str):
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name=lists)
    for _ in range(2):
        graph.add("StreamCacheCacheSave", name="collision", dataset=graph(load))
    fail_with(server, graph, "also saves to collision; choose a different name")
    graph.prompt.popitem()
    graph.add("StreamCacheMerge", name="collision", **{"datasets.dataset0": graph(load)})
    fail_with(server, graph, "also saves to collision; choose a different name")


def test_a_taken_name_is_refused_if_asked(server: Server, lists: str):
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name=lists)
    graph.add("StreamCacheCacheSave", name=lists, dataset=graph(load), if_exists="refuse")
    fail_with(server, graph, "the cache bad inputs already exists")
    # What a stopped save left behind is not a published cache: saving continues it.
    (server.base / "output" / "streamcache" / "unfinished" / ".build").mkdir(parents=True)
    graph.prompt["2"]["inputs"]["name"] = "unfinished"
    server.succeed(graph.prompt)


def test_c9_an_empty_selection_is_reported_with_the_buckets(server: Server, lists: str):
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name=lists)
    chosen = graph.add("StreamCacheSelect", dataset=graph(load), caption="unicorn")
    graph.add("ProbeStructure", latent=graph(chosen, 1))
    fail_with(server, graph, "none of 3 samples matches")
    graph.prompt[chosen]["inputs"].update(caption="", bucket="large")
    fail_with(server, graph, "expected width x height")


def test_invalid_weights_are_refused(server: Server, lists: str):
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name=lists)
    graph.add("StreamCacheMerge", name="weighed", weights="1, 2", **{"datasets.dataset0": graph(load)})
    fail_with(server, graph, "expected 1 numbers above 0")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vae": None, "clip": None}, "a dataset needs a VAE, a CLIP, or both"),
        ({"source": None}, "nothing to encode: connect Image Folder Dataset, or images and texts"),
        ({"more_resolutions": "big"}, "expected numbers such as 512, 768"),
        ({"crop": "sideways"}, "not in list"),
        ({"resolution": 8}, "smaller than min"),
    ],
)
def test_c9_invalid_encode_settings_are_refused(server: Server, change: dict[str, Any], words: str):
    write_pictures(server.base / "input" / "refused", count=1)
    graph = Graph(server)
    save_folder(graph, "input/refused", "refused")
    encode = next(node for node in graph.prompt.values() if node["class_type"] == "StreamCacheEncode")
    encode["inputs"] = {name: value for name, value in {**encode["inputs"], **change}.items() if value is not None}
    fail_with(server, graph, words)
    assert not cache_path(server, "refused").exists()


def test_a_folder_without_images_is_refused_and_leaves_nothing(server: Server):
    (server.base / "input" / "bare").mkdir()
    graph = Graph(server)
    save_folder(graph, "input/bare", "bare folder")
    fail_with(server, graph, "contains no images")
    assert not cache_path(server, "bare folder").exists()


def test_a_plan_is_not_taken_for_a_saved_dataset(server: Server):
    write_pictures(server.base / "input" / "planned", count=1)
    graph = Graph(server)
    node = save_folder(graph, "input/planned", "planned")
    plan = graph.prompt[node]["inputs"]["dataset"]
    chosen = graph.add("StreamCacheSelect", dataset=plan)
    graph.add("ProbeStructure", latent=graph(chosen, 1))
    del graph.prompt[node]
    fail_with(server, graph, "not encoded yet; put Streamable Cache Save between")


def test_c9_an_output_without_its_input_reports_which_one(server: Server, lists: str):
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name=lists)
    chosen = graph.add("StreamCacheSelect", dataset=graph(load))
    real = graph.add("StreamCacheRealize", latents=graph(chosen, 1))
    graph.add("ProbeStructure", conditioning=graph(real, 1))
    fail_with(server, graph, "connect its input conditioning")


def test_a_workflow_of_an_older_version_runs_without_newer_inputs(server: Server):
    write_pictures(server.base / "input" / "older", count=1)
    graph = Graph(server)
    node = save_folder(graph, "input/older", "older")
    for name, kept in {
        "StreamCacheImageFolder": {"folder", "trigger", "masks", "repeats", "prior", "prompt"},
        "StreamCacheEncode": {"source", "vae", "clip", "resolution", "crop", "flip"},
        "StreamCacheCacheSave": {"name", "dataset"},
        "StreamCacheLoadClip": {"clip_name", "type"},
    }.items():
        found = next(n for n in graph.prompt.values() if n["class_type"] == name)
        found["inputs"] = {k: v for k, v in found["inputs"].items() if k in kept} | {"gone_since": 1}
    assert server.succeed(graph.prompt)[node]["streamcache"][0]["samples"] == 1


def test_an_invalid_caption_file_excludes_only_its_image(server: Server):
    folder = write_pictures(server.base / "input" / "odd", count=2)
    (folder / "1.txt").write_bytes(b"\xff\xfe\xff")
    graph = Graph(server)
    node = save_folder(graph, "input/odd", "odd", texts=False)
    facts = server.succeed(graph.prompt)[node]["streamcache"][0]
    assert facts["samples"] == 1
    assert "1.png" in facts["excluded"][0]["source"]


def test_loaders_stay_usable_after_an_error(server: Server, lists: str):
    graph = Graph(server)
    vae, _ = loaders(graph, "eps")
    load = graph.add("StreamCacheCacheLoad", name=lists)
    chosen = graph.add("StreamCacheSelect", dataset=graph(load))
    wrong = graph.add("VAEDecode", samples=graph(chosen, 1), vae=graph(vae))  # 16 channels for a VAE of 4
    graph.add("PreviewImage", images=graph(wrong))
    assert server.fail(graph.prompt).node == wrong
    right = graph.add("VAEDecode", samples=graph(graph.add("EmptyLatentImage", width=64, height=64)), vae=graph(vae))
    shown = graph.add("PreviewImage", images=graph(right))
    kept = {vae, right, shown, graph.prompt[right]["inputs"]["samples"][0]}
    server.succeed({number: graph.prompt[number] for number in kept})


def train(graph: Graph, server: Server, name: str, **inputs: Any) -> None:
    model = graph.add("UNETLoader", unet_name=FAMILIES["flow"].model)
    graph.add("StreamCacheTrain", model=graph(model), name=name, steps=1, **inputs)


def test_c9_train_lora_without_a_dataset_is_refused_in_its_own_words(server: Server):
    graph = Graph(server)
    train(graph, server, "nothing")
    fail_with(
        server,
        graph,
        "nothing to train on: connect a dataset (from Encode Dataset or Streamable Cache Load), or latents",
    )


def test_a_taken_name_does_not_hide_lists_of_different_lengths(server: Server, lists: str):
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name=lists)
    three, one = (graph.add("StreamCacheSelect", dataset=graph(load), limit=limit) for limit in (3, 1))
    train(graph, server, lists, latents=graph(three, 1), conditioning=graph(one, 2))
    fail_with(server, graph, "3 latents and 1 conditionings")


def test_training_on_a_plan_without_a_clip_is_refused_before_anything_is_encoded(server: Server):
    write_pictures(server.base / "input" / "no_text", count=2)
    graph = Graph(server)
    source = graph.add("StreamCacheImageFolder", folder="input/no_text")
    vae, _ = loaders(graph, "flow")
    plan = graph.add("StreamCacheEncode", source=graph(source), vae=graph(vae), resolution=64, step="16")
    train(graph, server, "no_text", dataset=graph(plan))
    fail_with(server, graph, "connect a CLIP to Encode Dataset")
    assert not cache_path(server, "no_text").exists()


def test_train_lora_without_a_dataset_is_refused_before_its_model_is_loaded(server: Server):
    graph = Graph(server)
    train(graph, server, "nothing to load for")
    outcome = server.fail(graph.prompt)
    assert outcome.error.count("nothing to train on") == 1 and "Custom validation failed" in outcome.error


@pytest.mark.parametrize(("encoder", "words"), [("vae", "there will be no conditionings"), ("clip", "no latents")])
def test_a_plan_without_an_encoder_says_at_once_what_it_will_lack(server: Server, encoder: str, words: str):
    write_pictures(server.base / "input" / "half", count=1)
    graph = Graph(server)
    source = graph.add("StreamCacheImageFolder", folder="input/half", trigger="")
    encoders = dict(zip(("vae", "clip"), loaders(graph, "flow"), strict=True))
    links = {"source": graph(source), encoder: graph(encoders[encoder])}
    plan = graph.add("StreamCacheEncode", resolution=64, step="16", **links)
    save = graph.add("StreamCacheCacheSave", name=f"half {encoder}", dataset=graph(plan))
    shown = server.succeed(graph.prompt)
    assert words in shown[plan]["text"][0] and words in shown[plan]["streamcache"][0]["missing"][0]
    assert words in shown[save]["streamcache"][0]["notices"][0]


def test_placeholders_without_a_trigger_word_are_counted(server: Server):
    folder = write_pictures(server.base / "input" / "untriggered", count=3)
    for number in range(2):
        (folder / f"{number}.txt").write_text("a photo of [trigger]")
    graph = Graph(server)
    node = save_folder(graph, "input/untriggered", "untriggered", texts=False)
    notices = server.succeed(graph.prompt)[node]["streamcache"][0]["notices"]
    assert any("untriggered: [trigger] is in 2 of 3 captions" in text for text in notices), notices


def test_a_linked_folder_outside_of_the_roots_names_where_to_allow_it(server: Server, tmp_path: Path):
    write_pictures(tmp_path / "elsewhere", count=1)
    link = server.base / "input" / "linked"
    link.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    try:
        graph = Graph(server)
        save_folder(graph, "input/linked", "linked")
        fail_with(server, graph, "through a link; use a folder inside it, or list the folder that contains the linked")
        fail_with(server, graph, "extra_model_paths.yaml under datasets")
    finally:
        link.unlink()


def test_datasets_of_two_families_are_not_merged(server: Server, lists: str):
    with CacheWriter(cache_path(server, "of another family")) as writer:
        writer.add({"samples": torch.zeros(1, 4, 8, 8)}, [[torch.zeros(1, 2, 768), {}]], "a cat", "a.png")
    graph = Graph(server)
    loads = [graph(graph.add("StreamCacheCacheLoad", name=name)) for name in (lists, "of another family")]
    graph.add("StreamCacheMerge", name="mixed", **{f"datasets.dataset{n}": link for n, link in enumerate(loads)})
    fail_with(server, graph, "do not fit together: their latents have the shapes")
    assert not cache_path(server, "mixed").exists()
