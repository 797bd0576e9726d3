"""Exchange with other tools: exporting a cache in their formats, and importing exports and other trainers' caches."""

from .exporting import FORMATS, ExportReport, export_as
from .restoring import RestoreReport, import_cache, restore_export

__all__ = ["FORMATS", "ExportReport", "RestoreReport", "export_as", "import_cache", "restore_export"]
