"""StreamCache: encode a dataset once, stream it from disk, train LoRAs from it."""

__version__ = "0.1.0"
