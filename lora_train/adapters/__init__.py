"""Adapters: small trainable changes to a model's layers; the model's own weights stay unchanged."""

from .adapter import KINDS, seeded_generator
from .dora import AXES, Axis
from .factors import AdapterSettings, Factors
from .lora_file import read_lora, split_lora
from .network import Network, build_network
from .targets import select_modules

__all__ = [
    "AXES",
    "KINDS",
    "AdapterSettings",
    "Axis",
    "Factors",
    "Network",
    "build_network",
    "read_lora",
    "seeded_generator",
    "select_modules",
    "split_lora",
]
