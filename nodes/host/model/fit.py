"""Whether a dataset fits a ComfyUI model. Checked before the first step; errors name both numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from ....dataset_cache import Dataset
from ....lora_train import TrainError
from .conditioning import only_entry, widths


def family(model: Any) -> str:
    """The name of the model's family in ComfyUI."""
    return type(model.model_config).__name__


def check_latents(model: Any, dataset: Dataset) -> None:
    """Channels and axes of every bucket."""
    form, name = model.latent_format, family(model)
    for bucket in dataset.buckets():
        shape = tuple(bucket.shape)
        if shape[0] != form.latent_channels:
            raise TrainError(
                f"dataset: found latents with {shape[0]} channels, expected {form.latent_channels} for this "
                f"{name} model; encode the dataset with the VAE that belongs to the model"
            )
        axes = len(shape) - 1
        if axes != form.latent_dimensions and (axes, form.latent_dimensions) != (2, 3):
            raise TrainError(
                f"dataset: found latents of shape {shape} with {axes} axes after the channels, expected "
                f"{form.latent_dimensions} for this {name} model"
            )


def check_entries(dataset: Dataset) -> None:
    """The conditioning of one sample per bucket has one plain entry."""
    for indices in dataset.buckets().values():
        first = int(indices[0])
        only_entry(dataset[first].conditioning, f"sample {first} ({dataset.source(first)})")


def smallest_sample(dataset: Dataset) -> int:
    """A sample of the smallest bucket, for a trial run."""
    _, indices = min(dataset.buckets().items(), key=lambda item: torch.Size(item[0].shape).numel())
    return int(indices[0])


@contextmanager
def widths_checked(modules: dict[str, nn.Module], conditioning: Any, model: str) -> Iterator[None]:
    """Inside the `with`, an input of the wrong width raises an error that names the layer, which torch's does not."""
    found = ", ".join(f"{name} {width}" for name, width in widths(conditioning).items())

    def watch(name: str, module: nn.Module, expected: int) -> None:
        def before(_: nn.Module, given: tuple[Any, ...]) -> None:
            width = given[0].shape[-1] if given and isinstance(given[0], torch.Tensor) else expected
            if width != expected:
                raise TrainError(
                    f"dataset: {name} of this {model} model expects {expected} features, found {width} "
                    f"(conditioning: {found}); encode the captions with the text encoder that belongs to the model"
                )

        hooks.callback(module.register_forward_pre_hook(before).remove)

    with ExitStack() as hooks:
        for name, module in modules.items():
            expected = getattr(module, "in_features", None)
            if isinstance(expected, int):
                watch(name, module, expected)
        yield
