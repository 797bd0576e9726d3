"""Scenario: ComfyUI's blocks, compiled."""

from pathlib import Path

import torch

from streamcache.lora_train.memory import compiled

from .claims import claim, hold
from .family_claims import gradients
from .memory_claims import dataset_of, denoiser_of


def run(base: Path) -> dict:
    return hold("compile_claims", globals(), base / "compile")


@claim
def blocks_of_flux_are_one_graph_each_with_the_same_gradients(folder: Path) -> None:
    from torch._dynamo.utils import counters

    dataset, denoiser = dataset_of("Flux", folder), denoiser_of("Flux")
    said: list[str] = []
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        denoiser.prepare_for(dataset)
        expected = gradients(denoiser, dataset)
        with compiled(denoiser.blocks(), said.append, "aot_eager"):
            found = gradients(denoiser, dataset)
    assert counters["frames"]["ok"] == len(denoiser.blocks()) and not counters["graph_break"] and not said, said
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
