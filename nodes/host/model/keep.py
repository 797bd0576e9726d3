"""Things of the host that training changes for a while and puts back, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute has another value for the time of the `with`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """torch's global generators are after the `with` as they were before: the host's samplers seed them."""
    here = torch.get_rng_state()
    there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(here)
        if there is not None:
            torch.cuda.set_rng_state(there, device)


@contextmanager
def native_output(sampling: Any) -> Iterator[None]:
    """The model returns its own prediction for the time of the `with`, not the clean latents that it implies."""
    sampling.calculate_denoised = _output
    try:
        yield
    finally:
        del sampling.calculate_denoised


def _output(sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
    return model_output
