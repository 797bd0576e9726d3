"""Whether a dataset fits a host model: refused before the first step, with both numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ....dataset_cache import realize
from ....lora_train import TrainError
from . import conditioning as conds

if TYPE_CHECKING:
    from .denoiser import HostDenoiser


def family(model: Any) -> str:
    """What the host calls the model's family."""
    return type(model.model_config).__name__


def check_latents(model: Any, dataset: Any) -> None:
    """Channels and axes of every bucket."""
    form, name = model.latent_format, family(model)
    for bucket in dataset.buckets():
        shape = tuple(bucket.shape)
        if shape[0] != form.latent_channels:
            raise TrainError(
                f"dataset: found latents of {shape[0]} channels, expected {form.latent_channels} for this "
                f"{name} model; encode the dataset with the VAE that belongs to the model"
            )
        axes = len(shape) - 1
        if axes != form.latent_dimensions and (axes, form.latent_dimensions) != (2, 3):
            raise TrainError(
                f"dataset: found latents of shape {shape} with {axes} axes behind the channels, expected "
                f"{form.latent_dimensions} for this {name} model"
            )


@torch.no_grad()
def check_conditionings(denoiser: HostDenoiser, dataset: Any) -> None:
    """Send one sample of the smallest bucket through the model, and name the layer that does not take its text.

    The model's blocks are watched by the way, for what they write in place.
    """
    for indices in dataset.buckets().values():
        first = int(indices[0])
        conds.only_entry(dataset[first].conditioning, f"sample {first} ({dataset.source(first)})")
    bucket = min(dataset.buckets().items(), key=lambda item: torch.Size(item[0].shape).numel())
    batch = dataset.read_batch([int(bucket[1][0])])
    with (
        _watched(denoiser.adaptable(), realize(batch.conditionings[0]), family(denoiser.model)),
        denoiser.parts.watched(),
        denoiser.precision.autocast(),
    ):
        prepared = denoiser.prepare(batch)
        t = torch.full((1,), 0.5, device=denoiser.device)
        denoiser.predict(prepared.latents, t, prepared.conditioning)


@contextmanager
def _watched(modules: dict[str, nn.Module], conditioning: Any, model: str) -> Iterator[None]:
    """A layer that is given another width than it takes raises, before torch's own error without names."""
    found = ", ".join(f"{name} {width}" for name, width in conds.widths(conditioning).items())

    def watch(name: str, module: nn.Module) -> None:
        def before(_: nn.Module, given: tuple[Any, ...]) -> None:
            width = given[0].shape[-1] if given and isinstance(given[0], torch.Tensor) else module.in_features
            if width != module.in_features:
                raise TrainError(
                    f"dataset: {name} of this {model} model takes {module.in_features} features, found {width} "
                    f"(conditioning: {found}); encode the captions with the text encoder that belongs to the model"
                )

        hooks.callback(module.register_forward_pre_hook(before).remove)

    with ExitStack() as hooks:
        for name, module in modules.items():
            if hasattr(module, "in_features"):
                watch(name, module)
        yield
