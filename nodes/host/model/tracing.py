"""A ComfyUI model without its data, for a memory forecast: it is neither loaded nor changed."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import comfy.model_management
import comfy.utils
import torch
from torch import nn

from ....lora_train import Shapes
from .borrowed import changed


@contextmanager
def without_data(patcher: Any, shapes: Shapes, device: torch.device, ram: torch.device | None) -> Iterator[None]:
    """The patcher's model as it is once loaded: on `device`, or with the weights of its layers in `ram`."""
    model = patcher.model

    def place(module: nn.Module) -> torch.device:
        return ram if ram is not None and hasattr(module, "comfy_cast_weights") else device

    with ExitStack() as stack:
        stack.callback(_forget_cached)
        stack.enter_context(shapes.instead_of_weights(model, place))
        # Streams come with buffers that ComfyUI keeps.
        stack.enter_context(changed(comfy.model_management, "get_offload_stream", lambda device: None))
        stack.enter_context(changed(comfy.model_management, "in_training", True))
        for name, value in patcher.object_patches.items():
            comfy.utils.set_attr(model, name, value)
        for module in model.modules():
            if hasattr(module, "comfy_cast_weights"):
                vars(module).pop("_v", None)  # of dynamic loading
                own = getattr(module, "prev_comfy_cast_weights", module.comfy_cast_weights)
                module.comfy_cast_weights = bool(own or ram is not None or patcher.force_cast_weights)
        model.current_patcher, model.device = patcher, device
        yield


def room(patcher: Any, device: torch.device) -> int:
    """Bytes for a training: what is free, what the model has already, and what ComfyUI will unload."""
    free = int(comfy.model_management.get_free_memory(device))
    if comfy.model_management.is_device_cpu(device):
        return free + int(patcher.model_size())
    loaded = [entry for entry in comfy.model_management.current_loaded_models if entry.device == device]
    return free + int(sum(entry.model_loaded_memory() for entry in loaded))


def device_memory() -> int:
    """Bytes of the device in total; 0 for a CPU, which needs no saving."""
    device = comfy.model_management.get_torch_device()
    if comfy.model_management.is_device_cpu(device):
        return 0
    return int(comfy.model_management.get_total_memory(device))


def _forget_cached() -> None:
    """Some models cache tensors per size of image in functions, where they would have no data for ever."""
    for found in gc.get_objects():
        if type(found) is functools._lru_cache_wrapper and str(found.__module__).startswith("comfy."):
            found.cache_clear()
