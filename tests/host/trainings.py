"""Trainings on the real server: one dataset, encoded once, and workflows that train on it."""

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from streamcache.cli.remote.comfy_server import Outcome

from .families import FAMILIES
from .graph import Graph, save_folder
from .pictures import write_pictures
from .server import Server

DATASET = "watched"
LONG = 100_000  # steps of a run that is stopped
SECONDS = 600  # only stops a hang
SETTINGS = {"batch_size": 2, "rank": 2, "learning_rate": 0.01, "sample_steps": 1, "validation_share": 0.2}


def ready_dataset(server: Server) -> str:
    """The name of the dataset; the first call encodes it."""
    if not (server.base / "output" / "streamcache" / DATASET).exists():
        write_pictures(server.base / "input" / DATASET, count=10)
        graph = Graph(server)
        save_folder(graph, f"input/{DATASET}", DATASET)
        server.succeed(graph.prompt)
    return DATASET


def train_graph(server: Server, name: str, steps: int = LONG, samples: bool = False, **changes: Any) -> Graph:
    """Load → Train LoRA; the last node is the training."""
    graph = Graph(server)
    dataset = graph.add("StreamCacheCacheLoad", name=ready_dataset(server))
    model = graph.add("UNETLoader", unet_name=FAMILIES["flow"].model)
    inputs = {"dataset": graph(dataset), "model": graph(model)}
    if samples:
        inputs["vae"] = graph(graph.add("VAELoader", vae_name=FAMILIES["flow"].vae))
    graph.add("StreamCacheTrain", **inputs, name=name, steps=steps, **{**SETTINGS, **changes})
    return graph


def train_node(graph: Graph) -> str:
    return next(number for number, node in graph.prompt.items() if node["class_type"] == "StreamCacheTrain")


@contextmanager
def training(server: Server, graph: Graph):
    """Runs a workflow during the `with`, from its first step on; yields the outcome, which is filled at the end."""
    outcome: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcome.append(server.run(graph.prompt)))
    thread.start()
    name = graph.prompt[train_node(graph)]["inputs"]["name"]
    try:
        until(lambda: outcome or run_row(server, name).get("step", 0) >= 3)
        yield outcome
    finally:
        if thread.is_alive():
            server.client.interrupt()
        thread.join(SECONDS)


def run_row(server: Server, name: str) -> dict[str, Any]:
    """The row of one run in the list of runs; empty if missing."""
    rows = server.client.get("/streamcache/runs")["runs"]
    return next((row for row in rows if row["name"] == name), {})


def until(true: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Waits until the result is true, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not true within {seconds:g} s")
