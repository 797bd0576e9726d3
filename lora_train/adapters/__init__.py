"""Adapters: small trainable changes to a model's layers; the model's own weights stay unchanged."""

from .adapter import KINDS, Adapter, seeded_generator
from .dora import AXES, Axis
from .factors import AdapterSettings
from .fused import split_parts, unsplittable
from .lora_file import FLAT_WRAPPINGS, WRAPPINGS, SortedKeys, read_lora, sort_keys, split_lora
from .masks import Part, draw_numbers
from .network import Network, build_network, load_fixed, restore_network
from .peft_config import PEFT_KEY, read_peft_config
from .targets import targets_without

__all__ = [
    "AXES",
    "FLAT_WRAPPINGS",
    "KINDS",
    "PEFT_KEY",
    "WRAPPINGS",
    "Adapter",
    "AdapterSettings",
    "Axis",
    "Network",
    "Part",
    "SortedKeys",
    "build_network",
    "draw_numbers",
    "load_fixed",
    "read_lora",
    "read_peft_config",
    "restore_network",
    "seeded_generator",
    "sort_keys",
    "split_lora",
    "split_parts",
    "targets_without",
    "unsplittable",
]
