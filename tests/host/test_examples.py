"""The example workflows run on the real server, with tiny models of two families instead of their own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from streamcache.dataset_cache import open_cache
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
    runner.built = runner.run("build_a_cache")
    return runner


def test_build_a_cache(example: Runner):
    facts = example.built["Streamable Cache Save"]["streamcache"][0]
    assert facts["samples"] == 5
    assert len(example.built["Dataset Preview"]["images"]) == 2
    assert len(open_cache(cache_path(example.server, facts["name"]), check=True)) == 5


def test_use_a_lazy_dataset_with_stock_nodes(example: Runner):
    shown = example.run("use_a_lazy_dataset_with_stock_nodes")
    assert len(shown["The dataset's images"]["images"]) == len(shown["Variations of them"]["images"]) == 4


def test_train_from_a_cache(example: Runner):
    example.lora().unlink(missing_ok=True)
    shown = example.run("train_from_a_cache")
    assert len(shown["Loss"]["images"]) == 1
    check_lora(example, f"example_{example.family}")


def check_lora(example: Runner, cache: str) -> None:
    """The LoRA was trained on this cache as it is now."""
    with safe_open(example.lora(), framework="pt") as file:
        facts = file.metadata()
        ups = [file.get_tensor(name) for name in file.keys() if name.endswith("lora_up.weight")]  # noqa: SIM118
    assert ups and all(up.abs().max() > 0 for up in ups)
    dataset = open_cache(cache_path(example.server, cache))
    assert (facts["ss_dataset_id"], facts["ss_dataset_generation"]) == (dataset.id, dataset.generation)


def test_build_and_train(example: Runner):
    example.lora().unlink(missing_ok=True)
    shown = example.run("build_and_train")
    assert len(shown["Loss"]["images"]) == 1
    check_lora(example, f"trained_{example.family}")


def test_train_from_a_shared_cache_without_images(example: Runner):
    """The cache was copied to another place, without its images."""
    example.lora().unlink(missing_ok=True)
    shared = cache_path(example.server, f"shared/from_{example.family}")
    shutil.copytree(cache_path(example.server, f"example_{example.family}"), shared)
    hidden = example.server.base / "input" / "my_images"
    away = hidden.rename(example.server.base / "elsewhere")
    try:
        name = {"name": f"shared/from_{example.family}"}
        shown = example.run("train_from_a_shared_cache", StreamCacheCacheLoad=name)
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
    shown = example.run("convert_cores_dataset", StreamCacheCacheSave={"name": f"converted_{example.family}"})
    assert shown["Streamable Cache Save"]["streamcache"][0]["samples"] == 5
    assert len(shown["Dataset Preview"]["images"]) == 2


def test_examples_contain_no_local_paths():
    for file in [*FOLDER.rglob("*.json"), *(ROOT / "subgraphs").glob("*.json")]:
        text = json.dumps(read_json(file))
        assert "/home/" not in text and "/root/" not in text and ":\\" not in text, file.name
