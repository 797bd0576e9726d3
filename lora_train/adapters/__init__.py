"""Adapters: small trainable changes that hang on a model's layers and leave the model itself alone."""

from .network import AdapterSettings, Network, build

__all__ = ["AdapterSettings", "Network", "build"]
