"""Datasets and caches that other programs wrote, read without running anything that they contain."""

from .convert import ConvertReport, convert
from .files import MAX_FILE_BYTES, read_tensors, read_whole, unpack_tensors
from .importing import KINDS, ImportReport, import_foreign

__all__ = [
    "KINDS",
    "MAX_FILE_BYTES",
    "ConvertReport",
    "ImportReport",
    "convert",
    "import_foreign",
    "read_tensors",
    "read_whole",
    "unpack_tensors",
]
