"""A ComfyUI model as the painter of a grid: its pictures equal those of Load LoRA, CLIP Text Encode and KSampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import comfy.samplers
import comfy.sd
from torch import Tensor

import nodes as host_nodes

from ....dataset_cache import closest_name, file_identity
from ....lora_train import Column, GridSettings, Row, TrainError
from ..encoders import conditioning_identity, image_encoder, model_identity, surroundings, text_encoder
from .lora_fit import check_lora, read_lora_file, touches_clip


class HostPainter:
    """Draws pictures with a MODEL, a VAE and either a CLIP and texts, or conditionings."""

    def __init__(
        self, model: Any, vae: Any, clip: Any, prompts: Sequence[Any], negative: Any, settings: GridSettings
    ) -> None:
        _check_choice("sampler", settings.sampler, comfy.samplers.KSampler.SAMPLERS)
        _check_choice("scheduler", settings.scheduler, comfy.samplers.KSampler.SCHEDULERS)
        self.model, self.clip, self.settings = model, clip, settings
        self.prompts, self.negative = list(prompts), negative
        self.images = image_encoder(vae)
        self.vae = vae
        self.texts = None if clip is None else text_encoder(clip)
        self._encoded: dict[tuple[Any, str], Any] = {}
        self._identities: dict[str, Any] = {}
        self._read: tuple[Path, Any] | None = None

    def check(self, lora: Path) -> str:
        with self._clip_lease():
            return check_lora(lora, self.model, self.clip)

    def base(self) -> Any:
        return self._once("model", lambda: model_identity(self.model))

    def identity(self, column: Column, row: Row) -> Any:
        models = [self.base(), self._once("vae", self._vae_identity)]
        lora = "" if column.file is None else file_identity(column.file)
        return [*models, lora, self._words_identity(row.number, self.prompts[row.number]), self._negative_identity()]

    @contextmanager
    def with_lora(self, column: Column, rows: Sequence[Row]) -> Iterator[Callable[[Row], Tensor]]:
        with self._clip_lease():
            model, clip, state = self._patched(column)
            negative = self._words(self.negative, clip, state)
            positive = {row.number: self._words(self.prompts[row.number], clip, state) for row in rows}
        settings = self.settings

        def draw(row: Row) -> Tensor:
            (latent,) = host_nodes.EmptyLatentImage().generate(settings.width, settings.height, 1)
            (drawn,) = host_nodes.common_ksampler(
                model, row.seed, settings.steps, settings.cfg, settings.sampler, settings.scheduler,
                positive[row.number], negative, latent,
            )  # fmt: skip
            return drawn["samples"]

        yield draw

    def decode(self, latents: Tensor) -> Tensor:
        return host_nodes.VAEDecode().decode(self.vae, {"samples": latents})[0][:1]

    def _patched(self, column: Column) -> tuple[Any, Any, Any]:
        """The model and the CLIP with a LoRA as Load LoRA gives them, and a name for the state of the CLIP."""
        if column.file is None:
            return self.model, self.clip, None
        if self._read is None or self._read[0] != column.file:
            self._read = None  # before the next one is read
            self._read = column.file, read_lora_file(column.file)
        tensors, metadata = self._read[1]
        clip = self.clip if self.clip is not None and touches_clip(tensors, self.clip) else None
        strength = column.strength
        model, patched = comfy.sd.load_lora_for_models(
            self.model, clip, tensors, strength, strength, lora_metadata=metadata
        )
        return (model, self.clip, None) if clip is None else (model, patched, (column.file, strength))

    def _words(self, given: Any, clip: Any, state: Any) -> Any:
        """The conditioning of a text. Each is encoded once for each state of the CLIP."""
        if not isinstance(given, str):
            return given
        if (state, given) not in self._encoded:
            self._encoded[state, given] = text_encoder(clip).encode([given])[0]
        return self._encoded[state, given]

    def _words_identity(self, place: Any, given: Any) -> Any:
        if not isinstance(given, str):
            return self._once(f"prompt {place}", lambda: conditioning_identity(given))
        texts = self.texts
        assert texts is not None  # texts without a CLIP were refused
        clip = self._once("clip", lambda: texts.identity)
        return self._once(f"text {given}", lambda: [clip, surroundings().of(given), given])

    def _negative_identity(self) -> Any:
        return self._words_identity("negative", self.negative)

    def _vae_identity(self) -> str:
        return self.images.identity

    def _clip_lease(self) -> Any:
        return nullcontext() if self.texts is None else self.texts.lease()

    def _once(self, name: str, find: Callable[[], Any]) -> Any:
        if name not in self._identities:
            self._identities[name] = find()
        return self._identities[name]


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        hint = closest_name(value, known) or f"; expected one of {', '.join(known)}"
        raise TrainError(f'{name} = "{value}": not found in ComfyUI{hint}')
