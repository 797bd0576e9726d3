"""Everything that knows ComfyUI: its folders, server, encoders and models. Settings and contract import without it."""

from .settings import HOST_SETTINGS, HostSettings, split_settings

__all__ = [
    "HOST_SETTINGS",
    "HostSettings",
    "split_settings",
]
