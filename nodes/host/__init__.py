"""All knowledge of the host: its models, folders, progress, routes and types."""

from .settings import HOST_SETTINGS, HostSettings, split_settings

__all__ = [
    "HOST_SETTINGS",
    "HostSettings",
    "split_settings",
]
