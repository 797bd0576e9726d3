"""The reference model as the painter of a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..dataset_cache import file_identity, object_identity
from ..lora_train import Column, GridSettings, Network, Row, TrainError, load_fixed, read_lora
from .denoiser import ReferenceDenoiser
from .encoders import DOWNSCALE, ReferenceImageEncoder, ReferenceTextEncoder, decode_latents, encode_caption

SCALED = ("lora", "loha", "lokr")  # kinds whose change of weight is proportional to their alpha


class ReferencePainter:
    """Draws pictures with a ReferenceDenoiser. It has one sampler, and no CFG."""

    def __init__(self, denoiser: ReferenceDenoiser, settings: GridSettings) -> None:
        self.denoiser = denoiser
        self.steps = settings.steps
        self.shape = (denoiser.model.size.channels, settings.height // DOWNSCALE, settings.width // DOWNSCALE)
        self._weights = object_identity(denoiser.model.state_dict())

    def check(self, lora: Path) -> str:
        self._load(lora, 1.0)
        return ""

    def base(self) -> Any:
        return self._weights

    def identity(self, column: Column, row: Row) -> Any:
        encoders = [ReferenceImageEncoder.identity, ReferenceTextEncoder.identity]
        return [self._weights, *encoders, file_identity(column.file) if column.file else "", row.prompt]

    @contextmanager
    def with_lora(self, column: Column, rows: Sequence[Row]) -> Iterator[Callable[[Row], torch.Tensor]]:
        def draw(row: Row) -> torch.Tensor:
            return self.denoiser.sample(encode_caption(row.prompt), self.shape, row.seed, self.steps)

        network = Network({}) if column.file is None else self._load(column.file, column.strength)
        with self.denoiser.session(), network.attached(self.denoiser.adaptable()):
            yield draw

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        return decode_latents(latents)

    def _load(self, lora: Path, strength: float) -> Network:
        network = load_fixed(self.denoiser, read_lora(lora))
        for name, adapter in network.items():
            factors = adapter.factors
            if factors is not None and factors.kind not in SCALED and strength != 1:
                raise TrainError(f"{lora.name}: {name} is {factors.label}, which the reference model has at strength 1")
            if factors is not None:
                factors.alpha *= strength
            for change in (adapter.diff, adapter.diff_b):
                if change is not None:
                    change *= strength
        return network.moved(self.denoiser.device)
