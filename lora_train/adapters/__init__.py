"""Adapters: small trainable changes that hang on a model's layers and leave the model itself alone."""

from .adapter import KINDS, seeded_generator
from .dora import AXES, Axis
from .lora_file import read_lora, split_lora
from .network import AdapterSettings, Network, build_network
from .targets import select_modules

__all__ = [
    "AXES",
    "KINDS",
    "AdapterSettings",
    "Axis",
    "Network",
    "build_network",
    "read_lora",
    "seeded_generator",
    "select_modules",
    "split_lora",
]
