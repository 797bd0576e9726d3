"""Workflows of stock nodes on the real server: lazy data gives the same results as data in memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageChops
from safetensors.torch import load_file

from streamcache.tests.host.difference import difference
from streamcache.tests.host.families import FAMILIES
from streamcache.tests.host.graph import Graph, Link, loaders
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.host
KINDS = ("eager", "lazy")


@pytest.fixture(scope="module", params=FAMILIES)
def results(request: pytest.FixtureRequest, server: Server) -> dict[str, Path]:
    """The results of the same workflow per kind of data: folders of files."""
    family = request.param
    save_both(server, family)
    for kind in KINDS:
        graph = Graph(server)
        if kind == "eager":
            data = graph.add("LoadTrainingDataset", folder_name=f"eager-{family}")
            latents, conditionings = graph(data, 0), graph(data, 1)
        else:
            load = graph.add("StreamCacheCacheLoad", name=f"lazy-{family}")
            data = graph.add("StreamCacheSelect", dataset=graph(load))
            latents, conditionings = graph(data, 1), graph(data, 2)
        stock_nodes(graph, family, f"{family}/{kind}", latents, conditionings)
        server.succeed(graph.prompt)
    return {kind: server.base / "output" / family / kind for kind in KINDS} | {"family": family, "base": server.base}


def save_both(server: Server, family: str) -> None:
    """One dataset encoded by core's nodes, saved by core's node and by ours."""
    write_pictures(server.base / "input" / "stock", count=3)
    graph = Graph(server)
    images = graph.add("LoadImageTextDataSetFromFolder", folder="stock")
    vae, clip = loaders(graph, family, on_demand=False)
    made = graph.add(
        "MakeTrainingDataset", images=graph(images), texts=graph(images, 1), vae=graph(vae), clip=graph(clip)
    )
    lists = {"latents": graph(made, 0), "conditioning": graph(made, 1)}
    graph.add("SaveTrainingDataset", folder_name=f"eager-{family}", shard_size=2, **lists)
    graph.add("StreamCacheCacheSave", name=f"lazy-{family}", captions=graph(images, 1), **lists)
    server.succeed(graph.prompt)


def stock_nodes(graph: Graph, family: str, label: str, latents: Link, conditionings: Link) -> None:
    """Every stock node of the list, with its results saved below `label`."""
    vae, clip = loaders(graph, family, on_demand=False)
    model = graph.add("UNETLoader", unet_name=FAMILIES[family].model)
    empty, other = (graph(graph.add("CLIPTextEncode", clip=graph(clip), text=text)) for text in ("", "a horse"))

    def sample(positive: Link, latent: Link) -> Link:
        settings = {"seed": 7, "steps": 2, "cfg": 3.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 0.6}
        links = {"positive": positive, "negative": empty, "latent_image": latent}
        return graph(graph.add("KSampler", model=graph(model), **links, **settings))

    def save(name: str, latent: Link) -> None:
        graph.add("SaveLatent", samples=latent, filename_prefix=f"{label}/{name}")

    sampled = sample(conditionings, latents)
    save("KSampler", sampled)
    decoded = graph(graph.add("VAEDecode", samples=sampled, vae=graph(vae)))
    graph.add("SaveImage", images=decoded, filename_prefix=f"{label}/VAEDecode")
    graph.add("PreviewImage", images=graph(graph.add("VAEDecode", samples=latents, vae=graph(vae))))
    save("LatentUpscale", graph(graph.add("LatentUpscale", samples=latents, width=128, height=96)))
    save("LatentBatch", graph(graph.add("LatentBatch", samples1=latents, samples2=latents)))
    pair = {"conditioning_to": conditionings, "conditioning_from": other}
    changed = {
        "ConditioningCombine": {"conditioning_1": conditionings, "conditioning_2": other},
        "ConditioningAverage": {**pair, "conditioning_to_strength": 0.3},
        "ConditioningConcat": pair,
        "ConditioningSetTimestepRange": {"conditioning": conditionings, "start": 0.2, "end": 0.9},
    }
    for node, inputs in changed.items():
        save(node, sample(graph(graph.add(node, **inputs)), latents))
    buckets = graph.add("ResolutionBucket", latents=latents, conditioning=conditionings)
    graph.add(
        "SaveTrainingDataset", latents=graph(buckets, 0), conditioning=graph(buckets, 1), folder_name=f"{label}/buckets"
    )
    train = {"steps": 1, "rank": 2, "batch_size": 1, "gradient_checkpointing": False, "training_dtype": "fp32"}
    trained = graph.add("TrainLoraNode", model=graph(model), latents=latents, positive=conditionings, **train)
    graph.add("SaveLoRA", lora=graph(trained, 0), prefix=f"{label}/trained")


LATENTS = [
    *("KSampler", "LatentUpscale", "LatentBatch", "ConditioningCombine"),
    *("ConditioningAverage", "ConditioningConcat", "ConditioningSetTimestepRange"),
]


@pytest.mark.parametrize("node", LATENTS)
def test_c3_stock_nodes_return_the_same_latents(results: dict[str, Any], node: str):
    eager, lazy = ([load_file(file) for file in sorted(results[kind].glob(f"{node}_*.latent"))] for kind in KINDS)
    assert len(eager) == 3
    assert difference(eager, lazy) is None


def test_c3_stock_nodes_return_the_same_images(results: dict[str, Any]):
    pairs = zip(*(sorted(results[kind].glob("VAEDecode_*.png")) for kind in KINDS), strict=True)
    differing = [a.name for a, b in pairs if ImageChops.difference(Image.open(a), Image.open(b)).getbbox()]
    assert len(list(results["lazy"].glob("VAEDecode_*.png"))) == 3
    assert differing == []


def test_c5_buckets_and_cores_own_dataset_are_the_same(results: dict[str, Any]):
    family = results["family"]
    shards = [sorted((results["base"] / "datasets" / family / kind / "buckets").glob("*.pkl")) for kind in KINDS]
    eager, lazy = ([torch.load(file, weights_only=True) for file in found] for found in shards)
    assert eager and difference(eager, lazy) is None


def test_cores_own_trainer_takes_lazy_data(results: dict[str, Any]):
    assert [len(list(results[kind].glob("trained*.safetensors"))) for kind in KINDS] == [1, 1]
