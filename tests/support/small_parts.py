"""A small denoiser and a small dataset on disk, for tests that train in milliseconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.denoiser import Denoiser, PreparedBatch
from streamcache.lora_train.loop import TrainHooks, TrainResult, train
from streamcache.lora_train.objective.noise_schedule import FlowSchedule
from streamcache.lora_train.run.folder import open_run

SHAPES = ((8, 8), (4, 12), (6, 6))
CHANNELS, WORDS, TEXT = 4, 5, 6
SCALE = 0.5  # this model multiplies its latents by it


@dataclass
class SmallDenoiser:
    """Two linear layers over channels, shifted by time and text. It records every model call."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    schedule: FlowSchedule = field(default_factory=FlowSchedule)
    calls: list[dict[str, Any]] = field(default_factory=list)
    fails_at: int | None = None  # the call that returns nan
    open_sessions: int = 0

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        self.layers = nn.ModuleDict(
            {"up": nn.Linear(CHANNELS, 16), "text": nn.Linear(TEXT, 16), "down": nn.Linear(16, CHANNELS)}
        )
        for parameter in self.layers.parameters():
            parameter.data = torch.randn(parameter.shape, generator=random) * 0.3
            parameter.requires_grad_(False)

    def prepare_for(self, dataset: Any) -> None:
        for bucket in dataset.buckets():
            if bucket.shape[0] != CHANNELS:
                raise TrainError(f"the dataset has latents of {bucket.shape[0]} channels, the model takes {CHANNELS}")

    def prepare(self, batch: Any) -> PreparedBatch:
        return PreparedBatch(batch.latents.float() * SCALE, torch.cat([words[0][0] for words in batch.conditionings]))

    def predict(self, x_t: Tensor, t: Tensor, conditioning: Tensor) -> Tensor:
        self.calls.append({"rows": len(x_t), "shape": tuple(x_t.shape), "t": t.tolist(), "text": conditioning.clone()})
        hidden = self.layers["up"](x_t.movedim(1, -1)) + self.layers["text"](conditioning.mean(1))[:, None, None]
        out = self.layers["down"](torch.tanh(hidden + t[:, None, None, None])).movedim(-1, 1)
        return out * torch.nan if self.fails_at == len(self.calls) else out

    def adaptable(self) -> dict[str, nn.Module]:
        return dict(self.layers.items())

    def groups(self) -> dict[str, list[str]]:
        return {"attention": ["up", "down"], "all": ["up", "text", "down"]}

    def blocks(self) -> list[nn.Module]:
        return [self.layers["up"], self.layers["down"]]

    def export_names(self, naming: str) -> dict[str, str]:
        return {name: f"diffusion_model.{name}" for name in self.layers}

    @contextmanager
    def session(self) -> Iterator[None]:
        self.open_sessions += 1
        try:
            yield
        finally:
            self.open_sessions -= 1

    def sample(self, conditioning: Any, shape: tuple[int, ...], seed: int, steps: int) -> Tensor:
        x = torch.randn((1, *shape), generator=torch.Generator().manual_seed(seed))
        for step in range(steps, 0, -1):
            x = x - self.predict(x, torch.full((1,), step / steps), conditioning[0][0]) / steps
        return x / SCALE


def decode(latents: Tensor) -> list[Image.Image]:
    """Three channels as colors."""
    colors = (latents[:, :3].movedim(1, -1).clamp(-1, 1) * 127 + 128).to(torch.uint8)
    return [Image.fromarray(one.numpy()) for one in colors]


def words_of(number: int) -> list:
    """The conditioning of caption `number`: filled with that number, to recognize it."""
    return [[torch.full((1, WORDS, TEXT), float(number)), {"pooled_output": torch.full((1, TEXT), float(number))}]]


def latent_of(number: int, shape: tuple[int, int]) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1000 + number)
    return {"samples": torch.randn(1, CHANNELS, *shape, generator=random)}


def make_dataset(path: Path, count: int = 24, empty: bool = True, **facts: Any):
    """`count` samples over three buckets; sample i has caption i. `facts` go to every sample."""
    with CacheWriter(path) as writer:
        for number in range(count):
            writer.add(
                latent=latent_of(number, SHAPES[number % len(SHAPES)]),
                conditioning=words_of(number),
                caption=f"caption {number}",
                source=f"{number}.png",
                **facts,
            )
        if empty:
            writer.put("nothing said", words_of(-1), "conditioning")
            writer.name("empty caption", "nothing said")
    return open_cache(path)


def run_training(
    folder: Path,
    dataset: Any,
    denoiser: Denoiser | None = None,
    hooks: TrainHooks | None = None,
    mode: str = "new",
    **settings: Any,
) -> TrainResult:
    """Train in `folder`/runs/test with small defaults."""
    config = TrainConfig(**{"steps": 6, "batch_size": 4, "rank": 2, "learning_rate": 1e-2, **settings})
    with open_run(folder / "runs", "test", mode) as run:
        return train(denoiser or SmallDenoiser(), dataset, config, run, hooks=hooks, decode=decode)
