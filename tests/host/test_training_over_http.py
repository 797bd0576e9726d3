"""Train LoRA in workflows on the real server: from a folder to an image, stopped and resumed, during a save."""

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from streamcache.cli.remote.comfy_server import Event, Outcome
from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train import RENAMED_SETTINGS
from streamcache.tests.host.families import FAMILIES
from streamcache.tests.host.graph import Graph, loaders
from streamcache.tests.host.pictures import write_pictures
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.host

SETTINGS = {"steps": 4, "batch_size": 2, "rank": 2, "learning_rate": 0.02, "sample_steps": 2, "mode": "overwrite"}
LONG = 100_000  # steps of a run that is stopped
SECONDS = 600  # only stops a hang


def train_folder(server: Server, family: str, name: str, images: str = "trained", **changes: Any) -> tuple[Graph, str]:
    """Folder → plan → Train LoRA, with sample images; returns the graph and the id of the last node."""
    folder = server.base / "input" / images
    if not folder.exists():
        write_pictures(folder)
    graph = Graph(server)
    source = graph.add("StreamCacheImageFolder", folder=f"input/{images}")
    vae, clip = loaders(graph, family)
    model = graph.add("UNETLoader", unet_name=FAMILIES[family].model)
    settings = {"resolution": 64, "step": "16", "thumbnail": 0}
    plan = graph.add("StreamCacheEncode", source=graph(source), vae=graph(vae), clip=graph(clip), **settings)
    prompt = graph.add("CLIPTextEncode", clip=graph(clip), text="a cat")
    inputs = {"model": graph(model), "dataset": graph(plan), "vae": graph(vae), "prompts": graph(prompt)}
    return graph, graph.add("StreamCacheTrain", **inputs, name=name, **{**SETTINGS, **changes})


def run_facts(server: Server, name: str) -> dict[str, Any]:
    return json.loads((server.base / "output" / "streamcache_runs" / name / "run.json").read_text(encoding="utf-8"))


def lora_path(server: Server, name: str) -> Path:
    return server.base / "output" / "loras" / f"{name}.safetensors"


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def step_of(event: Event) -> int:
    """The step in a progress text. Not every step has one."""
    found = re.match(r"step (\d+)/", event.text)
    return int(found[1]) if found else -1


def run_until(server: Server, graph: Graph, ready: Callable[[Event], bool], then: Callable[[str], None]) -> Outcome:
    """Run a workflow, and call `then` once an event is `ready`."""
    acted = threading.Event()
    queued = server.client.queue

    def tell(event: Event) -> None:
        if not acted.is_set() and ready(event):
            acted.set()
            then(prompt_ids[0])

    prompt_ids: list[str] = []

    def queue(prompt: dict[str, Any]) -> Outcome:
        outcome = queued(prompt)
        prompt_ids.append(outcome.prompt_id)
        return outcome

    server.client.queue = queue
    try:
        return server.client.run(graph.prompt, tell)
    finally:
        server.client.queue = queued


class TestFromFolderToLora:
    """One workflow per family, run twice, then with ComfyUI's own nodes after it."""

    @pytest.fixture(scope="class", params=FAMILIES)
    @staticmethod
    def runs(server: Server, request: pytest.FixtureRequest) -> dict[str, Any]:
        family = request.param
        graph, node = train_folder(server, family, f"http_{family}", export_every=2)
        events: tuple[list[Event], list[Event]] = ([], [])
        outputs = server.succeed(graph.prompt, events[0])
        before = lora_path(server, f"http_{family}").stat().st_mtime_ns
        server.succeed(graph.prompt, events[1])
        again = lora_path(server, f"http_{family}").stat().st_mtime_ns != before
        pictures = add_stock_nodes(graph, node, family)
        stock = server.succeed(graph.prompt)
        files = [server.base / "temp" / stock[picture]["images"][0]["filename"] for picture in pictures]
        return {"family": family, "shown": outputs[node], "events": events, "again": again, "files": files}

    def test_b7_a_plan_is_saved_first_then_trained_with_samples_and_progress(
        self, server: Server, runs: dict[str, Any]
    ):
        family = runs["family"]
        facts = run_facts(server, f"http_{family}")
        assert facts["status"] == "done" and facts["step"] == 4
        assert len(open_cache(server.base / "output" / "streamcache" / f"http_{family}")) == 5
        assert runs["shown"]["images"] and "4 of 4 steps" in runs["shown"]["text"][0]
        told = runs["events"][0]
        first_step = next(n for n, event in enumerate(told) if step_of(event) >= 0)
        assert any("Encoding" in event.text for event in told[:first_step])
        assert not any("Encoding" in event.text for event in told[first_step:]), "no encoder runs during training"
        samples = server.base / "output" / "streamcache_runs" / f"http_{family}" / "samples"
        assert len(list(samples.glob("step-*.png"))) >= 2

    def test_i4_sample_images_plot_and_loras_are_outputs_of_the_job(self, server: Server, runs: dict[str, Any]):
        name, shown = f"http_{runs['family']}", runs["shown"]
        saved = [*shown["images"], *shown["loras"]]
        assert [file["filename"] for file in shown["loras"]] == [f"{name}-000002.safetensors", f"{name}.safetensors"]
        assert {"step-00000004-0.png", "loss.png"} <= {file["filename"] for file in shown["images"]}
        assert all((server.base / "output" / file["subfolder"] / file["filename"]).is_file() for file in saved)
        jobs = server.client.get("/api/jobs?limit=500")["jobs"]
        asked = [
            server.client.get(f"/api/jobs/{job['id']}") for job in jobs if job.get("outputs_count", 0) >= len(saved)
        ]
        outputs = [node for job in asked for node in job["outputs"].values()]
        assert any(node.get("loras") == shown["loras"] and node["images"] == shown["images"] for node in outputs)
        assert f"LoRA files of earlier steps (1): {name}-000002.safetensors" in shown["text"][0]

    def test_j2_the_memory_forecast_is_told_before_the_first_step(self, server: Server, runs: dict[str, Any]):
        told = runs["events"][0]
        first_step = next(n for n, event in enumerate(told) if step_of(event) >= 0)
        assert any("Memory: the training needs" in event.text for event in told[:first_step])
        memory = server.client.get(f"/streamcache/run?name=http_{runs['family']}")["memory"]
        forecast = memory["forecast"]
        assert forecast["peak"] > forecast["weights"] > 0 and forecast["fits"] and not memory["problem"]

    def test_the_same_workflow_again_trains_nothing(self, runs: dict[str, Any]):
        assert not runs["again"]
        assert not any(step_of(event) >= 0 for event in runs["events"][1])

    def test_the_output_goes_into_the_hosts_own_nodes(self, runs: dict[str, Any]):
        base, trained = (file.read_bytes() for file in runs["files"])
        assert base != trained


def add_stock_nodes(graph: Graph, node: str, family: str) -> list[str]:
    """Load LoRA Model, Save LoRA and Plot Loss after a training; two images, without the LoRA and with it."""
    model, clip, vae = "4", "3", "2"
    patched = graph.add("LoraModelLoader", model=graph(model), lora=graph(node, 0), strength_model=1.0)
    text = graph.add("CLIPTextEncode", clip=graph(clip), text="")
    size = {"width": 64, "height": 64, "batch_size": 1}
    empty = graph.add("EmptySD3LatentImage" if family == "flow" else "EmptyLatentImage", **size)
    shared = {"positive": graph(text), "negative": graph(text), "latent_image": graph(empty), "steps": 2, "seed": 3}
    pictures = []
    for used in (model, patched):
        sampled = graph.add("KSampler", model=graph(used), **shared)
        decoded = graph.add("VAEDecode", vae=graph(vae), samples=graph(sampled))
        pictures.append(graph.add("PreviewImage", images=graph(decoded)))
    graph.add("SaveLoRA", lora=graph(node, 0), prefix=f"loras/again_{family}")
    graph.add("LossGraphNode", loss=graph(node, 1))
    return pictures


def test_the_stop_button_stops_within_a_step_and_the_run_resumes_later(server: Server):
    graph, node = train_folder(server, "flow", "http_stopped", steps=LONG, save_every=0)
    stopped: list[float] = []

    def press(prompt_id: str) -> None:
        stopped.append(time.monotonic())
        server.client.interrupt(prompt_id)

    outcome = run_until(server, graph, lambda event: step_of(event) >= 3, press)
    assert outcome.status == "interrupted" and time.monotonic() - stopped[0] < SECONDS
    facts = run_facts(server, "http_stopped")
    assert facts["status"] == "interrupted" and facts["step"] >= 3
    partial = lora_path(server, f"http_stopped-step{facts['step']:08}")
    assert metadata(partial)["ss_steps"] == str(facts["step"]) and not lora_path(server, "http_stopped").exists()
    goal = facts["step"] + 2
    graph.prompt[node]["inputs"] |= {"mode": "resume", "steps": goal}
    outputs = server.succeed(graph.prompt)
    assert f"{goal} of {goal} steps" in outputs[node]["text"][0]
    assert metadata(lora_path(server, "http_stopped"))["ss_steps"] == str(goal)


def test_a_new_run_says_that_one_of_its_name_was_stopped_and_how_to_go_on(server: Server):
    graph, node = train_folder(server, "flow", "http_left", "left", steps=LONG, save_every=0)
    run_until(server, graph, lambda event: step_of(event) >= 2, server.client.interrupt)
    step = run_facts(server, "http_left")["step"]
    graph.prompt[node]["inputs"] |= {"mode": "new", "steps": 1}
    text = server.succeed(graph.prompt)[node]["text"][0]
    assert f"http_left was stopped at step {step} of {LONG:,}, and this is a new run" in text
    assert "set mode = resume and name = http_left; to start it again, mode = overwrite" in text
    assert run_facts(server, "http_left")["step"] == step and run_facts(server, "http_left-2")["status"] == "done"
    graph.prompt[node]["inputs"] |= {"mode": "new", "steps": 2}
    assert "was stopped" not in server.succeed(graph.prompt)[node]["text"][0], "the latest of the name is done"


def test_resuming_an_unknown_run_is_refused_and_leaves_nothing(server: Server):
    graph, node = train_folder(server, "flow", "http_unknown", "unknown", mode="resume")
    outcome = server.fail(graph.prompt)
    assert outcome.node == node and 'has no run "http_unknown"' in outcome.error
    for folder in ("streamcache_runs", "streamcache"):
        assert not (server.base / "output" / folder / "http_unknown").exists(), folder


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "AdamWScheduleFree", "beta1": 0.0}, "needs beta1 above 0"),
        ({"sample_captions": "never written"}, "is not a caption of the dataset"),
        ({"naming": "diffusers", "adapter": "lokr"}, "choose comfyui"),
        ({"rank": 100_000}, "rank"),
    ],
)
def test_settings_that_training_refuses_are_found_before_anything_is_encoded(server: Server, settings, words):
    graph, node = train_folder(server, "flow", "http_refused", "refused", **settings)
    del graph.prompt[node]["inputs"]["prompts"]
    outcome = server.fail(graph.prompt)
    assert outcome.node == node and words in outcome.error
    assert not (server.base / "output" / "streamcache" / "http_refused").exists()


def test_a_training_keeps_its_generation_while_the_cache_is_saved_again(server: Server):
    graph, _ = train_folder(server, "flow", "http_shared", "shared", steps=40)
    path = server.base / "output" / "streamcache" / "http_shared"
    seen: list[str] = []

    def save(_: str) -> None:
        cache = open_cache(path)
        seen.append(cache.generation)
        first = cache[0].realize()
        with CacheWriter(path) as writer:
            writer.add(latent=first.latent, conditioning=first.conditioning, caption="another")
        assert open_cache(path).generation != cache.generation

    outcome = run_until(server, graph, lambda event: step_of(event) >= 1, save)
    assert outcome.status == "done" and seen, outcome
    assert metadata(lora_path(server, "http_shared"))["ss_dataset_generation"] == seen[0]


def test_a_wrong_model_is_an_error_on_the_node_with_both_numbers(server: Server):
    graph, node = train_folder(server, "flow", "http_wrong", "wrong")
    graph.prompt["4"]["inputs"]["unet_name"] = FAMILIES["eps"].model
    outcome = server.fail(graph.prompt)
    assert outcome.node == node and "16 channels" in outcome.error and "expected 4" in outcome.error
    assert not (server.base / "output" / "streamcache" / "http_wrong").exists(), "encoded before it was checked"


def test_targets_that_match_nothing_are_found_before_anything_is_encoded(server: Server):
    graph, node = train_folder(server, "flow", "http_targets", "targets", targets="no_such_layer")
    outcome = server.fail(graph.prompt)
    assert outcome.node == node and "no_such_layer" in outcome.error
    assert not (server.base / "output" / "streamcache" / "http_targets").exists()


def test_a_plan_that_is_trained_under_two_names_is_encoded_once(server: Server):
    graph, node = train_folder(server, "flow", "http_once", "once", steps=1)
    server.succeed(graph.prompt)
    graph.prompt[node]["inputs"]["name"] = "http_twice"
    events: list[Event] = []
    shown = server.succeed(graph.prompt, events)[node]["text"][0]
    assert "Trains on the cache http_once" in shown
    assert not any("Encoding" in event.text for event in events)
    assert not (server.base / "output" / "streamcache" / "http_twice").exists()
    assert run_facts(server, "http_twice")["status"] == "done"


def test_messages_name_what_is_missing_on_this_node(server: Server):
    graph, node = train_folder(server, "flow", "http_nothing")
    del graph.prompt[node]["inputs"]["dataset"]
    assert "nothing to train on: connect a dataset" in server.fail(graph.prompt).error
    write_pictures(server.base / "input" / "uncaptioned_clip", count=3)
    graph, node = train_folder(server, "flow", "http_no_clip", "uncaptioned_clip")
    del graph.prompt["5"]["inputs"]["clip"]
    assert "without a text encoder (CLIP), which training needs" in server.fail(graph.prompt).error


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "C:\\x", "a/b", "nul", ".."])
def test_a_name_that_leads_elsewhere_is_refused_before_anything_runs(server: Server, name: str):
    graph, node = train_folder(server, "flow", name)
    outcome = server.fail(graph.prompt)
    assert outcome.status == "refused" and outcome.node == node


def test_b6_old_names_of_settings_still_load_from_a_workflow(server: Server):
    graph, node = train_folder(server, "flow", "http_old", steps=1)
    inputs = graph.prompt[node]["inputs"]
    old = {"lr": 0.0123, "network_dim": 3, "train_batch_size": 2, "max_train_steps": 2}
    inputs.update(old)
    new = [RENAMED_SETTINGS[name] for name in old]
    for name in new:
        del inputs[name]
    server.succeed(graph.prompt)
    config = run_facts(server, "http_old")["config"]
    assert [config[name] for name in new] == list(old.values())


def test_missing_captions_and_masks_are_reported_with_the_run(server: Server):
    folder = write_pictures(server.base / "input" / "lacking", count=3)
    (folder / "broken.png").write_bytes(b"not an image")
    (folder / "1.txt").unlink()
    graph, node = train_folder(server, "flow", "lacking", steps=1)
    graph.prompt["1"]["inputs"]["folder"] = "input/lacking"
    shown = server.succeed(graph.prompt)[node]["text"][0]
    row = next(row for row in server.client.get("/streamcache/runs")["runs"] if row["name"] == "lacking")
    for words in ("No caption: 1 of 3 samples", "Skipped: 1 file\n", "lacking/broken.png: "):
        assert words in shown and words in row["notes"]
