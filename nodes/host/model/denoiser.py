"""The denoiser protocol on a ComfyUI MODEL of any family: the trainer's only way to the host's models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import comfy.ldm.modules.attention
import comfy.model_management
import comfy.model_patcher
import comfy.sampler_helpers
import torch
from torch import Tensor, nn

from ....dataset_cache import realize
from ....lora_train import EMPTY_CAPTION, Naming, Prepared, TrainConfig, TrainError, choose_precision, select_modules
from ..settings import HostSettings
from . import conditioning as conds
from . import fit, layers, naming, previews
from .borrowed import Aliases, normal_weights
from .frozen import frozen_layers
from .inplace import Blocks
from .keep import changed, generators_kept, native_output
from .schedule import ModelSchedule
from .sizes import Sizes, wants_sizes

if TYPE_CHECKING:
    from ....dataset_cache import Batch

# With this much asked for, the host clears the device for the model, as core's trainer does.
EVERYTHING = 1e20


class HostDenoiser:
    """What the trainer sees of a ModelPatcher. It works on a clone, which shares the weights of the given one."""

    def __init__(
        self,
        patcher: Any,
        precision: str = "auto",
        offload: bool = False,
        guidance: float = 1.0,
        preview: previews.PreviewSettings | None = None,
    ) -> None:
        self.patcher = patcher.clone()
        self.device = torch.device(patcher.load_device)
        self.schedule = ModelSchedule(patcher.get_model_object("model_sampling"))
        self.offload, self.guidance = offload, guidance
        self.preview = preview or previews.PreviewSettings()
        self.sizes: Sizes | None = None
        self._aliases: Aliases | None = None
        self._moved = False
        self.precision = choose_precision(precision, self.device)
        _compute_in(self.patcher, self.precision.dtype)
        self._options = _model_options(self.patcher)
        self.parts = Blocks(layers.blocks(self.model.diffusion_model))

    @property
    def model(self) -> Any:
        return self.patcher.model

    @property
    def architecture(self) -> str:
        """The family, as the host's own configuration class is called."""
        return fit.family(self.model).lower()

    def check(self, dataset: Any) -> None:
        self.sizes = Sizes.of(dataset)
        if self.preview.negative is None and EMPTY_CAPTION in dataset.named:
            empty = realize(dataset.entry(dataset.named[EMPTY_CAPTION]))
            self.preview = replace(self.preview, negative=empty)
        fit.check_latents(self.model, dataset)
        fit.check_conditionings(self, dataset)

    def prepare(self, batch: Batch) -> Prepared:
        self.return_to_device()
        latents = self.scale(batch.latents)
        told = [self._told(index, latents.shape) for index in batch.indices]
        return Prepared(latents, conds.join(self.model, latents, batch.conditionings, told))

    def predict(self, x_t: Tensor, t: Tensor, conditioning: Sequence[conds.Rows]) -> Tensor:
        sigma = self.schedule.sigma(t)
        if len(conditioning) == 1:
            return self._call(x_t, sigma, conditioning[0].inputs)
        # Captions of several forms: a call for each form, and every row back in its place.
        parts = [self._call(x_t[rows.places], sigma[rows.places], rows.inputs) for rows in conditioning]
        order = torch.tensor([place for rows in conditioning for place in rows.places], device=x_t.device)
        return torch.cat(parts)[order.argsort()]

    def adaptable(self) -> dict[str, nn.Module]:
        return layers.adaptable(self.model.diffusion_model)

    def groups(self) -> dict[str, list[str]]:
        return layers.groups(self.model.diffusion_model)

    def blocks(self) -> list[nn.Module]:
        return self.parts.all

    def export_names(self, naming_: Naming) -> dict[str, str]:
        return naming.export_names(self.model, self.adaptable(), naming_)

    @contextmanager
    def session(self) -> Iterator[None]:
        """The model is loaded and can be differentiated inside; after it, it is as any sampler left it."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(generators_kept(self.device))
            self._load()
            stack.callback(self.patcher.cleanup)
            self._begin()
            stack.enter_context(changed(comfy.model_management, "in_training", True))
            self._aliases = stack.enter_context(normal_weights(self.model))
            stack.callback(setattr, self, "_aliases", None)
            stack.enter_context(frozen_layers(self.adaptable().values()))
            stack.enter_context(self.parts.wrapped())
            yield

    def sample(self, conditioning: Any, shape: tuple[int, ...], seed: int, steps: int) -> Tensor:
        rank = 2 + self.model.latent_format.latent_dimensions
        shape = tuple(shape) if len(shape) >= rank else (1, *shape)
        self._moved = True  # the sampler asks the host for less than training does
        with changed(comfy.model_management, "in_training", False):
            try:
                return previews.sample(self.patcher, conditioning, shape, seed, steps, self.preview)
            finally:
                self._begin()

    def decode(self, vae: Any, latents: Tensor) -> list[Any]:
        """Pictures of sampled latents. The VAE may push the model off its device; the next batch brings it back."""
        self._moved = True
        with changed(comfy.model_management, "in_training", False), torch.no_grad():
            return previews.to_pictures(vae.decode(latents))

    def scale(self, latents: Tensor) -> Tensor:
        """Latents as the VAE makes them → as the model takes them. The same for every bucket."""
        latents = latents.to(self.device, torch.float32)
        if self.model.latent_format.latent_dimensions == 3 and latents.ndim == 4:
            latents = latents.unsqueeze(2)  # a picture is a video of one frame, as in the host's own sampling
        return self.model.process_latent_in(latents)

    def return_to_device(self) -> None:
        """Load the model again if something else may have taken its place."""
        if self._moved and self._aliases is not None:
            self._load()
            self._aliases.take()
            self._begin()
        self._moved = False

    def _load(self) -> None:
        comfy.model_management.load_models_gpu(
            [self.patcher], memory_required=EVERYTHING, force_full_load=not self.offload
        )

    def _begin(self) -> None:
        # Dynamically loaded models read blocks ahead when they know their patcher: right for sampling, where every
        # block runs once in order, but not for a backward pass.
        if not self.patcher.is_dynamic():
            self.patcher.pre_run()

    def _told(self, index: int, shape: Sequence[int]) -> dict[str, Any]:
        told: dict[str, Any] = {"guidance": self.guidance} if _embeds_guidance(self.model) else {}
        if self.sizes is not None and wants_sizes(self.model):
            told |= self.sizes.told(index, tuple(shape), self.model.latent_format.spacial_downscale_ratio)
        return told

    def _call(self, x: Tensor, sigma: Tensor, inputs: dict[str, Any]) -> Tensor:
        """One model call, with the patches and wrappers that the MODEL came with."""
        model, options = self.model, self._options
        transformer = {**options["transformer_options"], "cond_or_uncond": [0], "uuids": [None], "sigmas": sigma}
        inputs = {**inputs, "transformer_options": transformer}
        with native_output(model.model_sampling):
            wrapper = options.get("model_function_wrapper")
            if wrapper is None:
                return model.apply_model(x, sigma, **inputs)
            return wrapper(model.apply_model, {"input": x, "timestep": sigma, "c": inputs, "cond_or_uncond": [0]})


def _embeds_guidance(model: Any) -> bool:
    """Whether the guidance is an input that a distilled model learned. Others that take one, as Chroma does, know one
    value only, which the host gives them; without the embedding, the host puts a layer that does nothing, or None."""
    embedder = getattr(model.diffusion_model, "guidance_in", None)
    return embedder is not None and not isinstance(embedder, nn.Identity)


def _model_options(patcher: Any) -> dict[str, Any]:
    """The MODEL's own patches and wrappers. Attention is torch's: some of the host's faster ones have no gradient, and
    its default on the CPU cuts the work by the memory that is free, so that no two runs round alike."""
    options = comfy.model_patcher.create_model_options_clone(patcher.model_options)
    comfy.sampler_helpers.prepare_model_patcher(patcher, {}, options)
    options["transformer_options"].setdefault("optimized_attention_override", _torch_attention)
    return options


def _torch_attention(_: Any, *args: Any, **kwargs: Any) -> Tensor:
    return comfy.ldm.modules.attention.attention_pytorch(*args, **kwargs)


def _compute_in(patcher: Any, dtype: torch.dtype) -> None:
    model = patcher.model
    inference = patcher.get_model_object("manual_cast_dtype") or model.get_dtype()
    if inference != dtype:
        patcher.set_model_compute_dtype(dtype)


def make_denoiser(patcher: Any, config: TrainConfig, host: HostSettings, negative: Any = None) -> HostDenoiser:
    """A host model as these settings train it."""
    preview = previews.PreviewSettings(None if negative is None else realize(negative), host.sample_cfg)
    denoiser = HostDenoiser(patcher, config.precision, host.offload, host.guidance, preview)
    check_naming(denoiser, config)
    return denoiser


def check_naming(denoiser: HostDenoiser, config: TrainConfig) -> None:
    """diffusers splits layers that the host keeps in one: refused before the training, not at its end."""
    chosen = select_modules(config.targets, denoiser.adaptable(), denoiser.groups())
    named = denoiser.export_names(config.naming)
    lacking = [name for name in chosen if name not in named]
    if lacking:
        raise TrainError(
            f'naming = "{config.naming}": has no name for {len(lacking)} of {len(chosen)} layers of this model '
            f"({lacking[0]}, …); choose comfyui or kohya"
        )
