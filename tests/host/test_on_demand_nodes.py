"""Stand-ins for a CLIP and a VAE in workflows on the real server."""

import time
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from streamcache.tests.host.families import FAMILIES
from streamcache.tests.host.graph import Graph, loaders
from streamcache.tests.host.server import Server
from streamcache.tests.host.tiny_models import TEXT_ENCODER

pytestmark = pytest.mark.host


def identity(outputs: dict[str, Any], node: str) -> dict[str, Any]:
    return outputs[node]["identity"][0]


def structure(outputs: dict[str, Any], node: str) -> str:
    return outputs[node]["structure"][0]["hash"]


@pytest.fixture(scope="module")
def lora(server: Server) -> str:
    """A LoRA for the text encoder with several kinds of patches."""
    prefix = "lora_te_text_model_encoder_layers_0_self_attn_q_proj"
    draw = torch.Generator().manual_seed(3)
    tensors = {
        f"{prefix}.lora_up.weight": torch.randn(768, 2, generator=draw) * 0.1,
        f"{prefix}.lora_down.weight": torch.randn(2, 768, generator=draw) * 0.1,
        f"{prefix}.alpha": torch.tensor(2.0),
    }
    folder = server.base / "models" / "loras"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "text.safetensors")
    save_file({**tensors, f"{prefix}.alpha": torch.tensor(1.0)}, folder / "other.safetensors")
    return "text.safetensors"


@pytest.fixture(scope="module")
def chains(server: Server, lora: str) -> dict[str, Any]:
    """The same chains of nodes behind the host's loader and behind the stand-in."""
    graph = Graph(server)
    found: dict[str, Any] = {}
    for kind in ("host", "demand"):
        vae, clip = loaders(graph, "eps", on_demand=kind == "demand")
        model = graph.add("UNETLoader", unet_name=FAMILIES["eps"].model)
        skipped = graph.add("CLIPSetLastLayer", clip=graph(clip), stop_at_clip_layer=-2)
        patched = {
            name: graph.add(
                "LoraLoader",
                model=graph(model),
                clip=graph(clip),
                lora_name=file,
                strength_model=0.0,
                strength_clip=strength,
            )
            for name, file, strength in (
                ("lora", lora, 1.0),
                ("weaker", lora, 0.5),
                ("other", "other.safetensors", 1.0),
            )
        }
        clips = {"plain": graph(clip), "skipped": graph(skipped), **{name: graph(n, 1) for name, n in patched.items()}}
        image = graph.add("EmptyImage", width=64, height=64, color=0x336699)
        latent = graph.add("VAEEncode", pixels=graph(image), vae=graph(vae))
        found[kind] = {
            "text": {
                name: graph.add(
                    "ProbeStructure", conditioning=graph(graph.add("CLIPTextEncode", clip=link, text="a (red:1.2) cat"))
                )
                for name, link in clips.items()
            },
            "identity": {name: graph.add("ProbeIdentity", clip=link) for name, link in clips.items()},
            "vae": graph.add("ProbeIdentity", vae=graph(vae)),
            "latent": graph.add("ProbeStructure", latent=graph(latent)),
            "loads": {
                name: graph.add("ProbeModel", model=graph(at), after=graph(latent))
                for name, at in (("vae", vae), ("clip", clip))
            },
        }
    return {"nodes": found, "outputs": server.succeed(graph.prompt)}


@pytest.mark.parametrize("name", ["plain", "skipped", "lora", "weaker", "other"])
def test_e1_a_stand_in_encodes_text_as_the_hosts_clip_does(chains: dict[str, Any], name: str):
    host, demand = (structure(chains["outputs"], chains["nodes"][k]["text"][name]) for k in ("host", "demand"))
    assert host == demand


def test_e1_a_stand_in_encodes_images_as_the_hosts_vae_does(chains: dict[str, Any]):
    host, demand = (structure(chains["outputs"], chains["nodes"][kind]["latent"]) for kind in ("host", "demand"))
    assert host == demand


def test_e5_the_identity_does_not_depend_on_how_the_clip_was_loaded(chains: dict[str, Any]):
    found = {
        kind: {
            name: identity(chains["outputs"], node)["clip"] for name, node in chains["nodes"][kind]["identity"].items()
        }
        for kind in ("host", "demand")
    }
    assert found["host"]["plain"] == found["demand"]["plain"]
    assert found["host"]["skipped"] == found["demand"]["skipped"]
    for kind in found:
        assert len(set(found[kind].values())) == 5, "clip-skip, patches and their strength are part of it"


def test_e1_the_same_object_works_before_and_after_it_was_freed(server: Server):
    graph = Graph(server)
    _, clip = loaders(graph, "flow")
    texts = [graph.add("CLIPTextEncode", clip=graph(clip), text=text) for text in ("one", "two")]
    for text in texts:
        graph.add("ProbeStructure", conditioning=graph(text))
    probe = graph.add("ProbeModel", model=graph(clip), after=graph(texts[0]))
    facts = []
    for turn in range(2):
        for text in texts:
            graph.prompt[text]["inputs"]["text"] += "!"
        graph.prompt[probe]["inputs"]["turn"] = turn
        facts.append(server.succeed(graph.prompt)[probe]["facts"][0])
        wait_until_freed(server, graph, probe, turn)
    assert facts[0]["object"] == facts[1]["object"]
    # Two prompts with two texts each: loaded once per prompt, not once per text or call.
    assert [fact["loads"] for fact in facts] == [1, 2]


def wait_until_freed(server: Server, graph: Graph, probe: str, turn: int) -> None:
    for attempt in range(60):
        graph.prompt[probe]["inputs"]["turn"] = 1000 * (turn + 1) + attempt
        if not server.succeed(graph.prompt)[probe]["facts"][0]["loaded"]:
            return
        time.sleep(0.5)
    pytest.fail("the model was not freed")


def test_e5_reading_the_identity_loads_nothing(server: Server):
    graph = Graph(server)
    vae, clip = loaders(graph, "eps")
    probes = [graph.add("ProbeIdentity", clip=graph(clip)), graph.add("ProbeIdentity", vae=graph(vae))]
    outputs = server.succeed(graph.prompt)
    assert [identity(outputs, probe)["loaded"] for probe in probes] == [False, False]


def test_e5_a_copied_weight_file_has_the_same_identity(server: Server):
    folder = server.base / "models" / "text_encoders"
    (folder / "copy.pt").write_bytes((folder / TEXT_ENCODER).read_bytes())
    changed = torch.load(folder / TEXT_ENCODER, weights_only=True)
    changed["text_model.final_layer_norm.bias"] = torch.full((768,), 0.5).half()
    torch.save(changed, folder / "changed.pt")
    graph = Graph(server)
    files = (TEXT_ENCODER, "copy.pt", "changed.pt")
    clips = [graph.add("StreamCacheLoadClip", clip_name=name, type="sd3") for name in files]
    other = graph.add("StreamCacheLoadClip", clip_name=TEXT_ENCODER, type="stable_diffusion")
    probes = [graph.add("ProbeIdentity", clip=graph(clip)) for clip in (*clips, other)]
    outputs = server.succeed(graph.prompt)
    first, copy, altered, kind = (identity(outputs, probe)["clip"] for probe in probes)
    assert first == copy
    assert len({first, altered, kind}) == 3


def test_a_vae_stand_in_decodes_and_samples_like_the_hosts(server: Server):
    graph = Graph(server)
    shown = []
    for on_demand in (False, True):
        vae, _ = loaders(graph, "flow", on_demand)
        empty = graph.add("EmptySD3LatentImage", width=64, height=64, batch_size=2)
        image = graph.add("VAEDecode", samples=graph(empty), vae=graph(vae))
        again = graph.add("VAEEncodeTiled", pixels=graph(image), vae=graph(vae))
        shown.append(graph.add("ProbeStructure", latent=graph(again)))
    outputs = server.succeed(graph.prompt)
    assert structure(outputs, shown[0]) == structure(outputs, shown[1])
