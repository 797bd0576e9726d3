"""Datasets and caches that other programs wrote, read without running anything that they contain."""

from .comfy_dataset import is_comfyui_dataset
from .convert import ConvertReport, convert
from .files import MAX_FILE_BYTES, read_tensors, read_whole, refuse_link, unpack_tensors
from .importing import KINDS, ImportReport, import_foreign

__all__ = [
    "KINDS",
    "MAX_FILE_BYTES",
    "ConvertReport",
    "ImportReport",
    "convert",
    "import_foreign",
    "is_comfyui_dataset",
    "read_tensors",
    "read_whole",
    "refuse_link",
    "unpack_tensors",
]
