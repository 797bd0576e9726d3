"""Exchange with other tools: exporting a cache in their formats, and importing exports and other trainers' caches."""

from .exporting import FORMATS, export_as
from .restoring import import_cache

__all__ = ["FORMATS", "export_as", "import_cache"]
