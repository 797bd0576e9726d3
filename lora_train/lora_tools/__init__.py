"""Tools for LoRA files of any origin: what they contain, other ranks, sums, averages, other namings."""

from .average import average_loras, decaying_weights
from .convert import convert_lora
from .info import LoraInfo, inspect_lora
from .merge import check_weights, merge_loras
from .new_file import ToolReport
from .rank import RULES, RankRule
from .resize import resize_lora

__all__ = [
    "RULES",
    "LoraInfo",
    "RankRule",
    "ToolReport",
    "average_loras",
    "check_weights",
    "convert_lora",
    "decaying_weights",
    "inspect_lora",
    "merge_loras",
    "resize_lora",
]
