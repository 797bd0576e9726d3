"""The nodes that encode, save, load and select datasets, in workflows on the real server."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from streamcache.dataset_cache import CacheWriter, SampleFacts, open_cache
from streamcache.dataset_cache.read.leases import holders
from streamcache.tests.host.graph import Graph, loaders, save_folder
from streamcache.tests.host.pictures import write_picture, write_pictures
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.host


def saved(outputs: dict[str, Any], node: str) -> dict[str, Any]:
    (facts,) = outputs[node]["streamcache"]
    return facts


def cache_path(server: Server, name: str) -> Path:
    return server.base / "output" / "streamcache" / name


class TestEncoding:
    """One folder in several runs, each in its own workflow."""

    @pytest.fixture(scope="class")
    @staticmethod
    def runs(server: Server) -> dict[str, Any]:
        folder = write_pictures(server.base / "input" / "edited")
        found: dict[str, Any] = {}
        graph = Graph(server)
        node = save_folder(graph, "input/edited", "edited")
        models = {"vae": graph("2"), "clip": graph("3")}
        probes = {name: graph.add("ProbeModel", model=link, turn=-1) for name, link in models.items()}

        def count_loads(outputs: dict[str, Any]) -> dict[str, int]:
            return {name: outputs[probe]["facts"][0]["loads"] for name, probe in probes.items()}

        # ComfyUI may still have the models of another file's workflow, which were loaded then.
        alone = {place: graph.prompt[place] for place in (*(link[0] for link in models.values()), *probes.values())}
        before = count_loads(server.succeed(alone))
        for probe in probes.values():
            graph.prompt[probe]["inputs"]["after"] = graph(node)

        def run(turn: str) -> None:
            for probe in probes.values():
                graph.prompt[probe]["inputs"]["turn"] = len(found)
            outputs = server.succeed(graph.prompt)
            loads = {name: count - before[name] for name, count in count_loads(outputs).items()}
            found[turn] = {"saved": outputs.get(node), "loads": loads}

        run("first")
        run("unchanged")
        (folder / "1.txt").write_text("a very good dog", encoding="utf-8")
        run("caption")
        write_picture(folder / "0.png", (64, 64), seed=99)
        run("image")
        shutil.rmtree(cache_path(server, "edited") / ".leases", ignore_errors=True)
        return found

    def test_all_of_a_new_folder_is_encoded(self, runs: dict[str, Any], server: Server):
        facts = runs["first"]["saved"]["streamcache"][0]
        assert facts["samples"] == 5
        assert facts["encoded"] == {"conditioning": 6, "latent": 5, "thumbnail": 5}
        assert sum(facts["buckets"].values()) == 5 and len(facts["buckets"]) == 3

    def test_the_cache_names_its_encoders(self, runs: dict[str, Any], server: Server):
        made = open_cache(cache_path(server, "edited")).provenance["encode"]
        assert made["encoder_names"] == {"image": "taesd3", "text": "tiny_text"}

    def test_a3_a_caption_that_was_edited_costs_one_text_encode_and_no_image_encode(self, runs: dict[str, Any]):
        facts = runs["caption"]["saved"]["streamcache"][0]
        assert facts["encoded"] == {"conditioning": 1}
        assert runs["caption"]["loads"]["vae"] == runs["first"]["loads"]["vae"]

    def test_a1_an_image_that_was_replaced_costs_one_image_encode_and_no_text_encode(self, runs: dict[str, Any]):
        facts = runs["image"]["saved"]["streamcache"][0]
        assert facts["encoded"] == {"latent": 1, "thumbnail": 1}
        assert runs["image"]["loads"]["clip"] == runs["caption"]["loads"]["clip"]

    def test_a19_nothing_is_loaded_when_nothing_changed(self, runs: dict[str, Any]):
        assert runs["unchanged"]["loads"] == runs["first"]["loads"]

    def test_e6_each_encoder_is_loaded_once_per_phase(self, runs: dict[str, Any]):
        # The first time ever, the VAE is loaded once more to find its scale.
        assert runs["first"]["loads"]["clip"] == 1
        assert runs["first"]["loads"]["vae"] <= 2
        assert runs["caption"]["loads"]["clip"] == 2
        assert runs["image"]["loads"]["vae"] == runs["first"]["loads"]["vae"] + 1


def test_a3_a_caption_is_encoded_again_when_an_embedding_that_it_names_changes(server: Server):
    folder = write_pictures(server.base / "input" / "embedded", count=2)
    (folder / "0.txt").write_text("a photo in embedding:mark, at night", encoding="utf-8")
    (folder / "1.txt").write_text("a plain photo", encoding="utf-8")
    embedding = server.base / "models" / "embeddings" / "mark.safetensors"
    embedding.parent.mkdir(parents=True, exist_ok=True)
    graph = Graph(server)
    save_folder(graph, "input/embedded", "embedded")
    texts = []
    for value in (0.1, 0.1, 0.2):
        save_file({"emb_params": torch.full((1, 768), value)}, embedding)
        server.succeed(graph.prompt)
        texts.append(open_cache(cache_path(server, "embedded"))[0].realize().conditioning[0][0])
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[1], texts[2])


def test_a_latent_equals_that_of_the_hosts_vae_encode(server: Server):
    folder = server.base / "input" / "alike"
    write_pictures(folder, seed=5, count=2)
    graph = Graph(server)
    node = save_folder(graph, "input/alike", "alike", on_demand=False, batch_size=1)
    chosen = graph.add("StreamCacheSelect", dataset=graph(node), limit=1)
    (folder.parent / "alike.png").write_bytes((folder / "0.png").read_bytes())
    image = graph.add("LoadImage", image="alike.png")
    latent = graph.add("VAEEncode", pixels=graph(image), vae=graph("2"))
    text = graph.add("CLIPTextEncode", clip=graph("3"), text="a cat")
    probes = [
        graph.add("ProbeStructure", latent=graph(chosen, 1)),
        graph.add("ProbeStructure", latent=graph(latent)),
        graph.add("ProbeStructure", conditioning=graph(chosen, 2)),
        graph.add("ProbeStructure", conditioning=graph(text)),
    ]
    outputs = server.succeed(graph.prompt)
    lazy, eager, lazy_text, eager_text = (outputs[probe]["structure"][0] for probe in probes)
    assert lazy["hash"] == eager["hash"]
    assert lazy_text["hash"] == eager_text["hash"]
    assert "LazyTensor" in lazy["kinds"]["samples"] and "LazyTensor" not in eager["kinds"]["samples"]


def test_images_and_texts_of_other_nodes_are_encoded_too(server: Server):
    write_pictures(server.base / "input" / "listed")
    graph = Graph(server)
    images = graph.add("LoadImageTextDataSetFromFolder", folder="listed")
    vae, clip = loaders(graph, "eps")
    inputs = {"images": graph(images), "texts": graph(images, 1), "vae": graph(vae), "clip": graph(clip)}
    plan = graph.add("StreamCacheEncode", resolution=64, step="16", **inputs)
    node = graph.add("StreamCacheCacheSave", name="group/listed", dataset=graph(plan))
    facts = saved(server.succeed(graph.prompt), node)
    assert facts["samples"] == 5
    cache = open_cache(cache_path(server, "group/listed"))
    captions = sorted(caption for n in range(5) for caption in cache.captions(n))
    assert captions == ["a bird", "a cat", "a cat", "a dog", "one", "two"]
    assert cache[0].latent["samples"].shape[1] == 4


def test_a15_a_bad_file_is_named_and_skipped(server: Server):
    folder = write_pictures(server.base / "input" / "broken")
    (folder / "3.png").write_bytes(b"not an image")
    graph = Graph(server)
    node = save_folder(graph, "broken", "broken", texts=False)
    outputs = server.succeed(graph.prompt)
    facts = saved(outputs, node)
    assert facts["samples"] == 4
    (excluded,) = facts["excluded"]
    assert excluded["source"].endswith("3.png")
    assert "3.png" in outputs[node]["text"][0]


def test_only_nodes_with_changed_inputs_run_again(server: Server):
    write_pictures(server.base / "input" / "kept")
    graph = Graph(server)
    node = save_folder(graph, "input/kept", "kept", texts=False)
    chosen = graph.add("StreamCacheSelect", dataset=graph(node))
    graph.add("ProbeStructure", latent=graph(chosen, 1))

    def executed() -> set[str]:
        events: list = []
        server.succeed(graph.prompt, events)
        return {graph.prompt[event.node]["class_type"] for event in events if event.kind == "node"}

    assert "StreamCacheCacheSave" in executed()
    assert executed() == set()
    write_picture(server.base / "input" / "kept" / "0.png", (64, 64), seed=7)
    assert {"StreamCacheImageFolder", "StreamCacheCacheSave", "StreamCacheSelect", "ProbeStructure"} <= executed()
    assert executed() == set()
    with CacheWriter(cache_path(server, "kept")) as writer:  # another program saves other samples there
        writer.add(latent={"samples": torch.ones(1, 16, 8, 8)}, conditioning=[[torch.ones(1, 2, 4096), {}]])
    assert "StreamCacheCacheSave" in executed()
    assert len(open_cache(cache_path(server, "kept"))) == 5


def test_a_loaded_cache_reloads_only_when_it_changed(server: Server):
    path = cache_path(server, "watched")
    write_lists(path, 3)
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name="watched")
    chosen = graph.add("StreamCacheSelect", dataset=graph(load), limit=0)
    probe = graph.add("ProbeStructure", latent=graph(chosen, 1))

    def run() -> tuple[int, set[str]]:
        events: list = []
        outputs = server.succeed(graph.prompt, events)
        return len(outputs[probe]["structure"]), {event.node for event in events if event.kind == "node"}

    assert run() == (3, {load, chosen, probe})
    assert run() == (3, set())
    write_lists(path, 2)
    assert run() == (2, {load, chosen, probe})


def test_cached_results_keep_no_lease(server: Server):
    path = cache_path(server, "idle")
    write_lists(path, 3)
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name="idle")
    chosen = graph.add("StreamCacheSelect", dataset=graph(load))
    graph.add("ProbeStructure", conditioning=graph(chosen, 2))
    server.succeed(graph.prompt)
    end = time.monotonic() + 60
    while holders(path) and time.monotonic() < end:
        time.sleep(0.5)
    assert holders(path) == []


def test_c4_realized_data_is_the_lazy_data_in_memory(server: Server):
    path = cache_path(server, "realized")
    write_lists(path, 2)
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name="realized")
    chosen = graph.add("StreamCacheSelect", dataset=graph(load))
    real = graph.add("StreamCacheRealize", latents=graph(chosen, 1), conditioning=graph(chosen, 2))
    again = graph.add("StreamCacheRealize", latents=graph(real, 0), dtype="bfloat16")
    probes = {
        "lazy": graph.add("ProbeStructure", latent=graph(chosen, 1)),
        "real": graph.add("ProbeStructure", latent=graph(real, 0)),
        "half": graph.add("ProbeStructure", latent=graph(again, 0)),
        "text": graph.add("ProbeStructure", conditioning=graph(real, 1)),
    }
    outputs = server.succeed(graph.prompt)
    found = {name: outputs[probe]["structure"] for name, probe in probes.items()}
    assert [s["hash"] for s in found["lazy"]] == [s["hash"] for s in found["real"]]
    assert found["real"][0]["kinds"] == {"samples": "Tensor (1, 16, 8, 8) torch.float32"}
    assert found["half"][0]["kinds"] == {"samples": "Tensor (1, 16, 8, 8) torch.bfloat16"}
    assert found["text"][0]["kinds"] == [["Tensor (1, 2, 4096) torch.float32", {}]]


def test_samples_are_selected_by_number_caption_and_bucket(server: Server):
    write_pictures(server.base / "input" / "chosen")
    graph = Graph(server)
    node = save_folder(graph, "input/chosen", "chosen", texts=False)
    wanted = {
        "cats": {"caption": "CAT"},
        "bucket": {"bucket": "64x64"},
        "latent bucket": {"bucket": "8×8", "limit": 2},
        "range": {"start": 1, "stop": 3},
        "rest": {"start": 4},
    }
    lists = {name: graph.add("StreamCacheSelect", dataset=graph(node), **how) for name, how in wanted.items()}
    texts = {name: graph.add("PreviewAny", source=graph(number, 3)) for name, number in lists.items()}
    part = graph.add("StreamCacheCacheSave", name="cats only", dataset=graph(lists["cats"]))
    outputs = server.succeed(graph.prompt)
    shown = {name: list(outputs[number]["text"]) for name, number in texts.items()}
    assert shown == {
        "cats": ["a cat", "a cat"],
        "bucket": ["a cat", "a dog", "one"],
        "latent bucket": ["a cat", "a dog"],
        "range": ["a dog", "a bird"],
        "rest": ["one"],
    }
    assert saved(outputs, part)["samples"] == 2


def test_lists_are_never_made_for_a_large_dataset(server: Server):
    path = cache_path(server, "large")
    with CacheWriter(path) as writer:
        writer.put("latent", {"samples": torch.zeros(1, 4, 2, 2)}, "latent")
        writer.put("text", [[torch.zeros(1, 2, 3), {}]], "conditioning")
        for number in range(5000):
            writer.sample({"latent": ["latent"], "conditioning": ["text"]}, SampleFacts("x", f"{number}"))
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name="large")
    every = graph.add("StreamCacheSelect", dataset=graph(load), limit=0)
    graph.add("StreamCacheCacheSave", name="large copy", dataset=graph(every))
    outputs = server.succeed(graph.prompt)
    assert outputs["3"]["streamcache"][0]["samples"] == 5000
    graph.add("ProbeStructure", latent=graph(every, 1))
    assert "5,000 samples are too many for a list" in server.fail(graph.prompt).error


def test_a_preview_shows_thumbnails_and_buckets_of_a_plan_too(server: Server):
    write_pictures(server.base / "input" / "shown")
    graph = Graph(server)
    node = save_folder(graph, "input/shown", "shown", texts=False)
    plan = graph.prompt[node]["inputs"]["dataset"]
    before = graph.add("StreamCachePreview", dataset=plan, count=4)
    outputs = server.succeed({k: v for k, v in graph.prompt.items() if k != node})
    assert len(outputs[before]["images"]) == 2
    assert not cache_path(server, "shown").exists()
    after = graph.add("StreamCachePreview", dataset=graph(node))
    outputs = server.succeed(graph.prompt)
    sheet, chart = (server.base / "temp" / image["filename"] for image in outputs[after]["images"])
    with Image.open(sheet) as page, Image.open(chart) as bars:
        assert page.width > 300 and bars.width > 300


def test_latents_without_thumbnails_are_shown_through_a_vae(server: Server):
    write_lists(cache_path(server, "bare"), 2)
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name="bare")
    vae, _ = loaders(graph, "flow")
    graph.add("StreamCachePreview", dataset=graph(load), vae=graph(vae))
    server.succeed({k: v for k, v in graph.prompt.items() if k != "3"})
    graph.prompt["4"]["inputs"].pop("vae")
    assert "connect a VAE" in server.fail({k: v for k, v in graph.prompt.items() if k in "14"}).error


def test_datasets_merge_with_weights(server: Server):
    for number, name in enumerate(("left", "right")):
        write_lists(cache_path(server, name), 2 + number, value=number)
    graph = Graph(server)
    links = {
        f"datasets.dataset{n}": graph(graph.add("StreamCacheCacheLoad", name=name))
        for n, name in enumerate(("left", "right"))
    }
    node = graph.add("StreamCacheMerge", name="merged", weights="1, 0.5", **links)
    assert saved(server.succeed(graph.prompt), node)["samples"] == 5
    cache = open_cache(cache_path(server, "merged"))
    assert [float(sample.latent["samples"].mean()) for sample in cache] == [0, 0, 1, 1, 1]
    assert [facts.get("weight") for facts in cache.sets.values()] == [None, 0.5]


def test_a_dataset_is_neither_merged_into_itself_nor_over_another(server: Server):
    for name in ("own", "other"):
        write_lists(cache_path(server, name), 2)
    graph = Graph(server)
    own = graph(graph.add("StreamCacheCacheLoad", name="own"))
    node = graph.add("StreamCacheMerge", name="other", **{"datasets.dataset0": own})
    assert "is not a merge" in server.fail(graph.prompt).error
    graph.prompt[node]["inputs"]["name"] = "both"
    assert saved(server.succeed(graph.prompt), node)["samples"] == 2
    graph.prompt[node]["inputs"]["if_exists"] = "refuse"
    assert "already exists" in server.fail(graph.prompt).error
    merged = graph(graph.add("StreamCacheCacheLoad", name="both"))
    graph.prompt[node]["inputs"].update({"if_exists": "update", "datasets.dataset1": merged})
    assert "the samples come from this cache" in server.fail(graph.prompt).error
    assert len(open_cache(cache_path(server, "both"))) == 2


def test_a_selection_is_saved_under_another_name_and_never_over_its_source(server: Server):
    write_lists(cache_path(server, "all of it"), 4)
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name="all of it")
    half = graph.add("StreamCacheSelect", dataset=graph(load), limit=2)
    node = graph.add("StreamCacheCacheSave", name="half of it", dataset=graph(half))
    assert saved(server.succeed(graph.prompt), node)["samples"] == 2
    graph.prompt[half]["inputs"]["limit"] = 1
    assert saved(server.succeed(graph.prompt), node)["samples"] == 1
    lists = {"latents": graph(half, 1), "conditioning": graph(half, 2)}
    for inputs, words in (({"dataset": graph(half)}, "the samples come from"), (lists, "is not a cache of lists")):
        graph.prompt[node]["inputs"] = {"name": "all of it", "if_exists": "update", **inputs}
        assert words in server.fail(graph.prompt).error
    assert len(open_cache(cache_path(server, "all of it"))) == 4


def test_cores_lists_are_saved_with_batches_split(server: Server):
    graph = Graph(server)
    write_lists(cache_path(server, "singles"), 3)
    load = graph.add("StreamCacheCacheLoad", name="singles")
    chosen = graph.add("StreamCacheSelect", dataset=graph(load))
    buckets = graph.add("ResolutionBucket", latents=graph(chosen, 1), conditioning=graph(chosen, 2))
    node = graph.add("StreamCacheCacheSave", name="split", latents=graph(buckets, 0), conditioning=graph(buckets, 1))
    assert saved(server.succeed(graph.prompt), node)["samples"] == 3


def test_progress_is_shown_while_encoding(server: Server):
    write_pictures(server.base / "input" / "told", seed=8)
    graph = Graph(server)
    node = save_folder(graph, "input/told", "told", texts=False)
    events: list = []
    server.succeed(graph.prompt, events)
    told = [event for event in events if event.node == node]
    assert any(event.kind == "progress" and event.done == event.total for event in told)
    assert any("samples in" in event.text for event in told if event.kind == "text")


def write_lists(path: Path, count: int, value: float | None = None) -> None:
    with CacheWriter(path) as writer:
        for number in range(count):
            fill = torch.Generator().manual_seed(number)
            samples = (
                torch.randn(1, 16, 8, 8, generator=fill) if value is None else torch.full((1, 16, 8, 8), float(value))
            )
            writer.add(
                {"samples": samples}, [[torch.randn(1, 2, 4096, generator=fill), {}]], f"caption {number}", f"{number}"
            )
