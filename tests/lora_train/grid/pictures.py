"""A painter that counts, on the reference model, and LoRA files for it."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from streamcache.lora_train.grid import Column, GridSettings
from streamcache.reference.denoiser import ReferenceDenoiser
from streamcache.reference.painter import ReferencePainter
from streamcache.tests.reference.awake import awake

SETTINGS = GridSettings(steps=2, width=32, height=32)
LAYER = "diffusion_model.blocks.0.attn.to_q"


class Counting(ReferencePainter):
    """Counts the calls of the sampler."""

    def __init__(self, settings: GridSettings = SETTINGS) -> None:
        super().__init__(ReferenceDenoiser(awake("flow")), settings)
        self.drawn: list[tuple[str, int]] = []
        sample = self.denoiser.sample

        def counted(conditioning: Any, shape: Any, seed: int, steps: int) -> torch.Tensor:
            self.drawn.append((str(shape), seed))
            return sample(conditioning, shape, seed, steps)

        self.denoiser.sample = counted


def write_lora(path: Path, seed: int = 1, layer: str = LAYER, width: int = 32) -> Column:
    random = torch.Generator().manual_seed(seed)
    tensors = {
        f"{layer}.lora_up.weight": torch.randn(width, 2, generator=random),
        f"{layer}.lora_down.weight": torch.randn(2, width, generator=random),
        f"{layer}.alpha": torch.tensor(2.0),
    }
    save_file(tensors, path)
    return Column(path, 1.0, path.stem)
