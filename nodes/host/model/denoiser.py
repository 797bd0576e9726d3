"""A ComfyUI MODEL of any family as a denoiser: the trainer uses ComfyUI's models only through this."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import comfy.model_management
import comfy.model_patcher
import comfy.sampler_helpers
import torch
from torch import Tensor, nn

from ....dataset_cache import EMPTY_CAPTION, realize
from ....lora_train import (
    LayerRows,
    Naming,
    NoiseSchedule,
    PreparedBatch,
    TrainConfig,
    TrainError,
    choose_precision,
)
from ..settings import HostSettings
from . import conditioning as conds
from . import fit, layers, tracing
from .attention import TrainingAttention
from .borrowed import (
    Aliases,
    calls_noted,
    changed,
    generators_kept,
    native_output,
    normal_weights,
    nothing_recorded,
)
from .family import base_names
from .frozen import frozen_layers
from .inplace import Blocks
from .kernels import differentiable_kernels
from .previews import PreviewSettings, sample, to_images
from .schedule import ModelSchedule

if TYPE_CHECKING:
    from PIL import Image

    from ....dataset_cache import Batch, Dataset
    from ....lora_train import Shapes

log = logging.getLogger("streamcache")

# When this much memory is requested, ComfyUI unloads everything else, as for its own trainer.
EVERYTHING = 1e20


class HostDenoiser:
    """A ModelPatcher as the trainer uses it. Works on a clone that shares the weights of the given patcher."""

    def __init__(
        self,
        patcher: Any,
        precision: str = "auto",
        offload: bool = False,
        guidance: float = 1.0,
        preview: PreviewSettings | None = None,
        offload_share: float = 0.0,
        attention: str = "auto",
    ) -> None:
        self.patcher = patcher.clone()
        self.device = torch.device(patcher.load_device)
        self._levels = ModelSchedule(patcher.get_model_object("model_sampling"))
        self.schedule: NoiseSchedule = self._levels
        names = base_names(self.model, self._levels.prediction)
        self.architecture, self.base_version = names.architecture, names.version
        self.offload, self.offload_share, self.guidance = offload, offload_share, guidance
        self.ram = torch.device(patcher.offload_device)
        self.downscale = int(self.model.latent_format.spacial_downscale_ratio)
        self.preview = preview or PreviewSettings()
        self.sizes: conds.Sizes | None = None  # of the dataset; `prepare_for` sets it
        self._aliases: Aliases | None = None
        self._moved = False
        self._calls = conds.Calls()
        self._unfused = False  # whether sample images need the layers as training calls them
        self.precision = choose_precision(precision, self.device)
        _compute_in(self.patcher, self.precision.dtype)
        overriding = self.patcher.model_options["transformer_options"].get("optimized_attention_override")
        self._attention = TrainingAttention(overriding, attention != "auto")
        self._options = _model_options(self.patcher, self._attention)
        self.parts = Blocks(layers.blocks(self.model.diffusion_model))

    @property
    def model(self) -> Any:
        return self.patcher.model

    def prepare_for(self, dataset: Dataset) -> None:
        self.sizes = conds.Sizes.of(dataset)
        if self.preview.negative is None and EMPTY_CAPTION in dataset.named:
            empty = realize(dataset.entry(dataset.named[EMPTY_CAPTION]))
            self.preview = replace(self.preview, negative=empty)
        self._try_out(self._trial_of(dataset))

    def prepare(self, batch: Batch) -> PreparedBatch:
        self.return_to_device()
        assert batch.latents is not None, "prepare_for has checked the latents"
        latents = self.scale(batch.latents)
        extras = [self._extra_inputs(index, latents.shape) for index in batch.indices]
        return PreparedBatch(latents, conds.join(self.model, latents, batch.conditionings, extras))

    def predict(self, x_t: Tensor, t: Tensor, conditioning: Sequence[conds.Rows]) -> Tensor:
        return self._calls.predict(self._call, x_t, self._levels.sigma(t), conditioning)

    def adaptable(self) -> dict[str, nn.Module]:
        return layers.adaptable(self.model.diffusion_model)

    def groups(self) -> dict[str, list[str]]:
        return layers.groups(self.model.diffusion_model)

    def blocks(self) -> list[nn.Module]:
        return self.parts.all

    def export_names(self, naming: Naming) -> dict[str, str]:
        return layers.export_names(self.model, self.adaptable(), naming)

    def other_names(self) -> dict[str, LayerRows]:
        return layers.other_names(self.model, self.adaptable())

    @property
    def can_offload(self) -> bool:
        return not self.offload and not comfy.model_management.is_device_cpu(self.device)

    @contextmanager
    def traced(self, dataset: Dataset, shapes: Shapes, offload: bool | None = None) -> Iterator[None]:
        """A session without data. Afterwards everything is as before, also what this object has learned."""
        offload = self.offload if offload is None else offload
        trial = self._trial_of(dataset)
        own, tables, learned = dict(vars(self)), dict(self._levels.tables), self.parts.learned()
        try:
            with ExitStack() as stack:
                ram = self.ram if offload else None
                stack.enter_context(tracing.without_data(self.patcher, shapes, self.device, ram))
                stack.enter_context(differentiable_kernels())
                stack.enter_context(frozen_layers(self.adaptable().values()))
                stack.enter_context(self.parts.wrapped())
                self._options = _model_options(self.patcher, self._attention.without_override())
                self.sizes = conds.Sizes.of(dataset)
                self._calls = conds.Calls()
                with shapes.mode:
                    self._try_out(shapes.of_batch(trial))
                yield
        finally:
            vars(self).update(own)
            self._levels.tables = tables
            self.parts.learn(learned)

    def weights(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]

    def room(self) -> int:
        return tracing.room(self.patcher, self.device)

    def resident(self, away: int, need: int) -> int:
        if self.offload_share and not self.patcher.is_dynamic():
            return int(away * (1 - self.offload_share))
        if comfy.model_management.is_device_cpu(self.device):
            return 0
        return int(min(away, comfy.model_management.MIN_WEIGHT_MEMORY_RATIO * self.room()))

    @contextmanager
    def session(self) -> Iterator[None]:
        """Inside, the model is loaded and supports gradients; afterwards it is as a sampler would leave it."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(generators_kept(self.device))
            stack.enter_context(nothing_recorded())
            self._load()
            stack.callback(self.patcher.cleanup)
            self._begin()
            stack.enter_context(changed(comfy.model_management, "in_training", True))
            for name, value in list(vars(self.model.latent_format).items()):
                if isinstance(value, Tensor):  # means and deviations, which it would send to the device for each batch
                    stack.enter_context(changed(self.model.latent_format, name, value.to(self.device)))
            self._aliases = stack.enter_context(normal_weights(self.model))
            stack.callback(setattr, self, "_aliases", None)
            stack.enter_context(differentiable_kernels())
            stack.enter_context(frozen_layers(self.adaptable().values()))
            stack.enter_context(self.parts.wrapped())
            yield

    def sample(self, conditioning: Any, shape: tuple[int, ...], seed: int, steps: int) -> Tensor:
        rank = 2 + self.model.latent_format.latent_dimensions
        shape = tuple(shape) if len(shape) >= rank else (1, *shape)
        self._moved = True  # the sampler requests less memory than training does
        made, skipped = self._draw(conditioning, shape, seed, steps)
        if skipped and not self._unfused:
            # ComfyUI fuses some layers when it samples, without calling them, so their adapters would have no effect.
            self._unfused = True
            other, still = self._draw(conditioning, shape, seed, steps)
            self._unfused = len(still) < len(skipped)
            made = other if self._unfused else made
        return made

    def decode(self, vae: Any, latents: Tensor) -> list[Image.Image]:
        """Images from sampled latents. The VAE may push the model off the device; the next batch brings it back."""
        self._moved = True
        with changed(comfy.model_management, "in_training", False), torch.no_grad():
            return to_images(vae.decode(latents))

    def scale(self, latents: Tensor) -> Tensor:
        """Latents as the VAE returns them → as the model takes them. The same for every bucket."""
        latents = latents.to(self.device, torch.float32)
        if self.model.latent_format.latent_dimensions == 3 and latents.ndim == 4:
            latents = latents.unsqueeze(2)  # an image is a video of one frame, as in ComfyUI's own sampling
        return self.model.process_latent_in(latents)

    def return_to_device(self) -> None:
        """Load the model again if another model may have pushed it off the device."""
        if self._moved and self._aliases is not None:
            self._load()
            self._aliases.take()
            self._begin()
        self._moved = False

    def _draw(self, conditioning: Any, shape: tuple[int, ...], seed: int, steps: int) -> tuple[Tensor, list[nn.Module]]:
        """Sampled latents, and the layers with adapters that were not called for them."""
        adapted = [layer for layer in self.adaptable().values() if layer._forward_hooks]
        with changed(comfy.model_management, "in_training", self._unfused), calls_noted(adapted) as called:
            try:
                made = sample(self.patcher, conditioning, shape, seed, steps, self.preview)
            finally:
                self._begin()
        return made, [layer for layer in adapted if id(layer) not in called]

    def _load(self) -> None:
        comfy.model_management.load_models_gpu(
            [self.patcher], memory_required=EVERYTHING, force_full_load=not self.offload
        )
        if self.offload and self.offload_share and not self.patcher.is_dynamic():
            wanted = self.patcher.model_size() * (1 - self.offload_share)
            self.patcher.partially_load(self.device, wanted - self.model.model_loaded_weight_memory)

    def _begin(self) -> None:
        # Dynamically loaded models prefetch blocks once they know their patcher. That suits sampling, where every block
        # runs once and in order, but not a backward pass.
        if not self.patcher.is_dynamic():
            self.patcher.pre_run()

    def _trial_of(self, dataset: Dataset) -> Batch:
        """A sample of a dataset that fits as far as its shapes tell."""
        fit.check_latents(self.model, dataset)
        fit.check_entries(dataset)
        return dataset.read_batch([fit.smallest_sample(dataset)])

    def _try_out(self, batch: Batch) -> None:
        """Send one sample through the model: a layer that does not fit its text raises, and blocks that write in place
        are found."""
        with fit.widths_checked(self.adaptable(), realize(batch.conditionings[0]), fit.family(self.model)):
            self._try(batch)

    @torch.no_grad()
    def _try(self, batch: Batch) -> None:
        prepared = self.prepare(batch)
        t = torch.full((1,), 0.5, device=self.device)
        for watching in (self.parts.watched(), self.parts.watched_with_gradients(self.adaptable().values())):
            with watching, self.precision.autocast():
                self.predict(prepared.latents, t, prepared.conditioning)

    def _extra_inputs(self, index: int, shape: Sequence[int]) -> dict[str, Any]:
        """Guidance and sizes of a sample, for models that take them."""
        extra: dict[str, Any] = {"guidance": self.guidance} if _embeds_guidance(self.model) else {}
        if conds.takes_sizes(self.model):
            if self.sizes is None:
                raise TrainError("the model takes image sizes; call prepare_for(dataset) before prepare(batch)")
            extra |= self.sizes.inputs(index, shape, self.downscale)
        return extra

    def _call(self, x: Tensor, sigma: Tensor, inputs: dict[str, Any]) -> Tensor:
        """One model call, with the patches and wrappers of the MODEL."""
        model, options = self.model, self._options
        transformer = {**options["transformer_options"], "cond_or_uncond": [0], "uuids": [None], "sigmas": sigma}
        inputs = {**inputs, "transformer_options": transformer}
        with native_output(model.model_sampling):
            wrapper = options.get("model_function_wrapper")
            if wrapper is None:
                return model.apply_model(x, sigma, **inputs)
            return wrapper(model.apply_model, {"input": x, "timestep": sigma, "c": inputs, "cond_or_uncond": [0]})


def make_denoiser(patcher: Any, config: TrainConfig, host: HostSettings, negative: Any = None) -> HostDenoiser:
    """A ComfyUI model as these settings train it."""
    if host.offload_share and not host.offload:
        log.warning("offload_share = %g has no effect without offload", host.offload_share)
    elif host.offload_share and patcher.is_dynamic():
        log.warning(
            "offload_share = %g has no effect: ComfyUI loads this model dynamically and decides itself",
            host.offload_share,
        )
    preview = PreviewSettings(None if negative is None else realize(negative), host.sample_cfg)
    own = host.offload, host.guidance, preview, host.offload_share
    return HostDenoiser(patcher, config.precision, *own, attention=config.attention)


def _embeds_guidance(model: Any) -> bool:
    """Whether guidance is an input that a distilled model learned.

    Other models that take one, such as Chroma, know one value only, which ComfyUI supplies. Models without the
    embedding have an identity layer or None in its place.
    """
    embedder = getattr(model.diffusion_model, "guidance_in", None)
    return embedder is not None and not isinstance(embedder, nn.Identity)


def _model_options(patcher: Any, attention: TrainingAttention) -> dict[str, Any]:
    """The MODEL's own patches and wrappers, with an attention that has a gradient."""
    options = comfy.model_patcher.create_model_options_clone(patcher.model_options)
    comfy.sampler_helpers.prepare_model_patcher(patcher, {}, options)
    options["transformer_options"]["optimized_attention_override"] = attention
    return options


def _compute_in(patcher: Any, dtype: torch.dtype) -> None:
    model = patcher.model
    inference = patcher.get_model_object("manual_cast_dtype") or model.get_dtype()
    if inference != dtype:
        patcher.set_model_compute_dtype(dtype)
