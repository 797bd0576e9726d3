"""Adapters: small trainable changes to a model's layers; the model's own weights stay unchanged."""

from .adapter import KINDS, Adapter, seeded_generator
from .dora import AXES, Axis
from .factors import AdapterSettings
from .fused import split_parts, unsplittable
from .lora_file import read_lora, split_lora
from .masks import draw_numbers
from .network import Network, build_network, load_fixed
from .targets import targets_without

__all__ = [
    "AXES",
    "KINDS",
    "Adapter",
    "AdapterSettings",
    "Axis",
    "Network",
    "build_network",
    "draw_numbers",
    "load_fixed",
    "read_lora",
    "seeded_generator",
    "split_lora",
    "split_parts",
    "targets_without",
    "unsplittable",
]
