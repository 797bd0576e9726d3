"""The example workflows run on the real server, with tiny models of two families instead of their own."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from streamcache.dataset_cache import CacheError, open_cache
from streamcache.tests.host.examples import BLUEPRINT, CORE, EXAMPLES, make_blueprint, make_example
from streamcache.tests.host.families import FAMILIES
from streamcache.tests.host.graph import Graph, loaders
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.published import ROOT
from streamcache.tests.host.server import Server, read_json
from streamcache.tests.host.snapshot import compare
from streamcache.tests.host.test_dataset_nodes import cache_path
from streamcache.tests.host.tiny_models import TEXT_ENCODER

pytestmark = pytest.mark.host
FOLDER = ROOT / "example_workflows"


@pytest.fixture(scope="module")
def info(server: Server) -> dict[str, Any]:
    return server.client.get("/object_info")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_the_same_for_the_canvas_and_for_headless_runs(info: dict[str, Any], name: str):
    workflow = make_example(name, info)
    compare(FOLDER / f"{name}.json", workflow.canvas())
    compare(FOLDER / "api" / f"{name}.json", workflow.prompt())


def test_the_blueprint_file_is_up_to_date(info: dict[str, Any], server: Server):
    compare(ROOT / "subgraphs" / f"{BLUEPRINT}.json", make_blueprint(info))
    offered = server.client.get("/global_subgraphs").values()
    assert BLUEPRINT in [entry["name"] for entry in offered if entry["source"] == "custom_node"]


def test_every_example_has_an_image_and_is_offered_as_a_template(server: Server):
    offered = server.client.get("/workflow_templates")["streamcache"]
    assert sorted(offered) == sorted(EXAMPLES)
    assert [name for name in EXAMPLES if not (FOLDER / f"{name}.jpg").is_file()] == []


# What the templates of version 0.2 and 0.3 showed.
FORMER = {
    *(
        "StreamCacheImageFolder",
        "StreamCacheEncode",
        "StreamCacheCacheSave",
        "StreamCacheCacheLoad",
        "StreamCacheTrain",
    ),
    *("StreamCacheLoadVae", "StreamCacheLoadClip", "StreamCachePreview", "StreamCacheSelect", "LoadTrainingDataset"),
    *("UNETLoader", "CLIPTextEncode", "KSampler", "VAEDecode", "PreviewImage"),
}
BASES = [name for name in EXAMPLES if " Train on " in name]
# Loader → the output of Tiny Models that takes the place of its only one; Load Checkpoint has the same three.
LOADERS = {"UNETLoader": 0, "CLIPLoader": 1, "DualCLIPLoader": 1, "VAELoader": 2}
CHECKPOINT, TINY = "CheckpointLoaderSimple", "StreamCacheTinyModels"


def test_no_node_of_former_templates_is_lost():
    used = {node["class_type"] for name in EXAMPLES for node in read_json(FOLDER / "api" / f"{name}.json").values()}
    assert used >= FORMER


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_template_says_what_to_do(name: str):
    notes = [node for node in read_json(FOLDER / f"{name}.json")["nodes"] if node["type"] == "MarkdownNote"]
    assert [note["widgets_values"][0].startswith("# ") for note in notes] == [True]


@pytest.mark.parametrize("name", BASES)
def test_the_files_of_a_base_model_are_offered_for_download(server: Server, name: str):
    folders = server.client.get("/models")
    loaders = [n for n in read_json(FOLDER / f"{name}.json")["nodes"] if n["type"] in (*LOADERS, CHECKPOINT)]
    assert loaders
    for loader in loaders:
        chosen = [value for value in loader["widgets_values"] if str(value).endswith(".safetensors")]
        offered = loader["properties"]["models"]
        assert [file["name"] for file in offered] == chosen
        assert all(file["directory"] in folders and file["url"].endswith("/" + file["name"]) for file in offered)
        assert all(file["url"].startswith("https://huggingface.co/") for file in offered)


@pytest.mark.parametrize("name", BASES)
def test_a_template_for_a_base_model_runs(server: Server, name: str):
    """With Tiny Models instead of its files."""
    write_pictures(server.base / "input" / "my_images")
    number = name.split()[0]
    prompt = with_tiny_models(read_json(FOLDER / "api" / f"{name}.json"))
    small = {
        "StreamCacheEncode": {"resolution": 128},
        "StreamCacheCacheSave": {"name": f"base_{number}"},
        "StreamCacheTrain": {"name": f"base_{number}", "steps": 2, "mode": "overwrite"},
    }
    for node in prompt.values():
        node["inputs"].update(small.get(node["class_type"], {}))
    server.succeed(prompt)
    assert (server.base / "output" / "loras" / f"base_{number}.safetensors").exists()
    assert list((server.base / "output" / "streamcache_runs" / f"base_{number}" / "samples").glob("*.png"))


def test_j5_the_templates_for_distilled_bases_keep_what_the_base_can_do():
    for number in ("04", "12"):
        (name,) = (name for name in BASES if name.startswith(number))
        nodes = read_json(FOLDER / "api" / f"{name}.json").values()
        (settings,) = (node["inputs"] for node in nodes if node["class_type"] == "StreamCacheTrain")
        assert settings["guidance_target"] > 1 and settings["preservation_weight"] > 0, name
        assert settings["sample_cfg"] == 1, name
        if number == "04":  # its guidance is an input
            assert settings["guidance"] == settings["guidance_target"] and settings["resolution_shift"] == "flux"


def with_tiny_models(prompt: dict[str, Any]) -> dict[str, Any]:
    outputs = {number: LOADERS[node["class_type"]] for number, node in prompt.items() if node["class_type"] in LOADERS}
    for node in prompt.values():
        if node["class_type"] in (*LOADERS, CHECKPOINT):
            node.update(class_type=TINY, inputs={})
        links = {at: value for at, value in node["inputs"].items() if isinstance(value, list) and value[0] in outputs}
        node["inputs"].update({at: [number, outputs[number]] for at, (number, _) in links.items()})
    return prompt


class Runner:
    """Runs an example with the tiny models of a family, small and short."""

    def __init__(self, server: Server, family: str) -> None:
        self.server, self.family = server, family
        names = FAMILIES[family]
        self.changes = {
            "StreamCacheLoadVae": {"vae_name": names.vae},
            "StreamCacheLoadClip": {"clip_name": TEXT_ENCODER, "clip_name2": "none", "type": names.clip_type},
            "UNETLoader": {"unet_name": names.model},
            "StreamCacheEncode": {"resolution": 64, "step": "16"},
            "KSampler": {"steps": 2},
            "StreamCacheTrain": {"steps": 2, "rank": 2, "name": f"trained_{family}", "mode": "overwrite"},
            "StreamCacheCacheSave": {"name": f"example_{family}"},
            "StreamCacheCacheLoad": {"name": f"example_{family}"},
            "LoadTrainingDataset": {"folder_name": f"{CORE}_{family}"},
        }

    def run(self, name: str, **changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """What the nodes show, by the title of the node."""
        prompt = read_json(FOLDER / "api" / f"{name}.json")
        for node in prompt.values():
            node["inputs"].update({**self.changes, **changes}.get(node["class_type"], {}))
        outputs = self.server.succeed(prompt)
        return {prompt[number]["_meta"]["title"]: shown for number, shown in outputs.items()}

    def lora(self) -> Path:
        return self.server.base / "output" / "loras" / f"trained_{self.family}.safetensors"


@pytest.fixture(scope="module", params=FAMILIES)
def example(request: pytest.FixtureRequest, server: Server) -> Runner:
    write_pictures(server.base / "input" / "my_images")
    runner = Runner(server, request.param)
    runner.built = runner.run("06 Build a cache")
    return runner


def test_build_a_cache(example: Runner):
    facts = example.built["Streamable Cache Save"]["streamcache"][0]
    assert facts["samples"] == 5
    assert len(example.built["Dataset Preview"]["images"]) == 2
    assert len(open_cache(cache_path(example.server, facts["name"]), check=True)) == 5


def test_use_a_lazy_dataset_with_stock_nodes(example: Runner):
    shown = example.run("11 Stock nodes on a dataset")
    assert len(shown["The dataset's images"]["images"]) == len(shown["Variations of them"]["images"]) == 4


def test_train_from_a_cache(example: Runner):
    example.lora().unlink(missing_ok=True)
    shown = example.run("07 Train from a cache")
    assert len(shown["Loss"]["images"]) == 1
    check_lora(example, f"example_{example.family}")


def check_lora(example: Runner, cache: str) -> None:
    """The LoRA was trained on this cache as it is now."""
    dataset = open_cache(cache_path(example.server, cache))
    assert trained_on(example) == (dataset.id, dataset.generation)


def trained_on(example: Runner) -> tuple[str, str]:
    """Id and generation of the cache that the LoRA was trained on."""
    with safe_open(example.lora(), framework="pt") as file:
        facts = file.metadata()
        ups = [file.get_tensor(name) for name in file.keys() if name.endswith("lora_up.weight")]  # noqa: SIM118
    assert ups and all(up.abs().max() > 0 for up in ups)
    return facts["ss_dataset_id"], facts["ss_dataset_generation"]


def test_build_and_train(example: Runner):
    example.lora().unlink(missing_ok=True)
    before = generations(example.server)
    shown = example.run("08 Build and train in one")
    assert len(shown["Loss"]["images"]) == 1
    # The cache that the first example built has the same samples, and maybe another does: nothing is encoded again.
    assert generations(example.server) == before and trained_on(example) in before.values()


def generations(server: Server) -> dict[str, tuple[str, str]]:
    """Id and generation of every cache that can be opened."""
    found = {}
    for file in cache_path(server, "").rglob("dataset.json"):
        with suppress(CacheError):
            dataset = open_cache(file.parent)
            found[str(file)] = dataset.id, dataset.generation
    return found


def test_train_from_a_shared_cache_without_images(example: Runner):
    """The cache was copied to another place, without its images."""
    example.lora().unlink(missing_ok=True)
    shared = cache_path(example.server, f"shared/from_{example.family}")
    shutil.copytree(cache_path(example.server, f"example_{example.family}"), shared)
    hidden = example.server.base / "input" / "my_images"
    away = hidden.rename(example.server.base / "elsewhere")
    try:
        name = {"name": f"shared/from_{example.family}"}
        shown = example.run("09 Train from a shared cache", StreamCacheCacheLoad=name)
    finally:
        away.rename(hidden)
    assert len(shown["Dataset Preview"]["images"]) == 2
    check_lora(example, f"shared/from_{example.family}")


def test_convert_cores_dataset(example: Runner):
    server = example.server
    graph = Graph(server)
    images = graph.add("LoadImageTextDataSetFromFolder", folder="my_images")
    vae, clip = loaders(graph, example.family)
    made = {"images": graph(images), "texts": graph(images, 1), "vae": graph(vae), "clip": graph(clip)}
    data = graph.add("MakeTrainingDataset", **made)
    lists = {"latents": graph(data, 0), "conditioning": graph(data, 1)}
    graph.add("SaveTrainingDataset", folder_name=f"{CORE}_{example.family}", **lists)
    server.succeed(graph.prompt)
    shown = example.run("10 Convert a dataset of ComfyUI", StreamCacheCacheSave={"name": f"converted_{example.family}"})
    assert shown["Streamable Cache Save"]["streamcache"][0]["samples"] == 5
    assert len(shown["Dataset Preview"]["images"]) == 2


def test_examples_contain_no_local_paths():
    for file in [*FOLDER.rglob("*.json"), *(ROOT / "subgraphs").glob("*.json")]:
        text = json.dumps(read_json(file))
        assert "/home/" not in text and "/root/" not in text and ":\\" not in text, file.name
