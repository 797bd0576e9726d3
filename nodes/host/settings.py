"""Settings of training on a host model, beside those of the engine; with the same names on nodes and in commands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ...dataset_cache import Limits, Setting, check_setting

GROUP = "host"


@dataclass(frozen=True)
class HostSettings:
    """How the host runs the model."""

    offload: bool = False
    guidance: float = 1.0
    sample_cfg: float = 4.0

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, check_setting(HOST_SETTINGS[f.name], getattr(self, f.name)))


_ABOUT = {
    "offload": Limits("keep the model's weights off the device and bring each for its use: less memory, slower", GROUP),
    "guidance": Limits("guidance that a guidance-distilled model (Flux) is told while it trains", GROUP, low=0),
    "sample_cfg": Limits("guidance of the sample pictures, where there is a negative or empty caption", GROUP, low=0),
}
HOST_SETTINGS: dict[str, Setting] = {
    f.name: Setting(f.name, type(f.default), f.default, _ABOUT[f.name]) for f in fields(HostSettings)
}


def split_settings(values: dict[str, Any]) -> tuple[HostSettings, dict[str, Any]]:
    """The host's settings, and the rest, which are the engine's."""
    own = {name: value for name, value in values.items() if name in HOST_SETTINGS}
    return HostSettings(**own), {name: value for name, value in values.items() if name not in HOST_SETTINGS}
