"""The node LoRA Test Grid."""

from .lora_grid import NODES

__all__ = ["NODES"]
