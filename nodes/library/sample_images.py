"""What the sample images of a training are drawn from: a VAE, prompts, a negative prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...dataset_cache import Dataset, realize
from ...lora_train import Decode, Prompt, TrainConfig, with_sample_images


@dataclass(frozen=True)
class SampleImages:
    """What sample images are drawn from. Without a VAE there are none."""

    vae: Any = None
    prompts: Sequence[list] = ()
    negative: list | None = None

    def settings(self, config: TrainConfig) -> TrainConfig:
        return config if self.vae is None else with_sample_images(config)

    def decoder(self, denoiser: Any) -> Decode | None:
        return None if self.vae is None else lambda latents: denoiser.decode(self.vae, latents)

    def find_prompts(self, dataset: Dataset) -> list[Prompt] | None:
        """The connected prompts, at the size of the largest bucket; None if there are none."""
        if not self.prompts:
            return None
        bucket = max(dataset.buckets().items(), key=lambda item: len(item[1]))[0]
        shape = tuple(bucket.shape)
        return [Prompt(f"prompt {n}", realize(c), shape) for n, c in enumerate(self.prompts, start=1)]
