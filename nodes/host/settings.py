"""Settings for training on a ComfyUI model, in addition to those of the engine; the same on nodes and in commands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ...dataset_cache import Limits, Setting, check_setting

GROUP = "host"


@dataclass(frozen=True)
class HostSettings:
    """How ComfyUI runs the model."""

    offload: bool = False
    guidance: float = 1.0
    sample_cfg: float = 4.0
    offload_share: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, check_setting(HOST_SETTINGS[f.name], getattr(self, f.name)))


_ABOUT = {
    "offload": Limits("Offload the model's weights to RAM and load each when needed: less VRAM, slower", GROUP),
    "guidance": Limits("Guidance input of guidance-distilled models (Flux) during training", GROUP, low=0),
    "sample_cfg": Limits(
        "CFG scale for sample images, if there is a negative prompt or an empty caption", GROUP, low=0
    ),
    "offload_share": Limits(
        "With offload: share of the weights that go to RAM; the others stay in VRAM (0 = ComfyUI decides)",
        GROUP,
        low=0,
        high=1,
    ),
}
HOST_SETTINGS: dict[str, Setting] = {
    f.name: Setting(f.name, type(f.default), f.default, _ABOUT[f.name]) for f in fields(HostSettings)
}


def split_settings(values: dict[str, Any]) -> tuple[HostSettings, dict[str, Any]]:
    """ComfyUI's settings, and the rest, which are the engine's."""
    own = {name: value for name, value in values.items() if name in HOST_SETTINGS}
    return HostSettings(**own), {name: value for name, value in values.items() if name not in HOST_SETTINGS}
