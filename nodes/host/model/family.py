"""Which family of models a MODEL belongs to, and the memory of the device that it trains on."""

from __future__ import annotations

from typing import Any

import comfy.model_management


def families_of(patcher: Any) -> list[str]:
    """ComfyUI's class of the model's configuration, and the classes that it extends."""
    found = getattr(patcher.model, "model_config", None)
    return [kind.__name__ for kind in type(found).__mro__] if found is not None else []


def device_memory() -> int:
    """Bytes of the device in total; 0 for a CPU, which needs no saving."""
    device = comfy.model_management.get_torch_device()
    if comfy.model_management.is_device_cpu(device):
        return 0
    return int(comfy.model_management.get_total_memory(device))
