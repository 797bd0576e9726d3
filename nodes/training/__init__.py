"""The nodes Train LoRA, Train Options and Train Recipe, and a training as its node shows it."""

from .train import NODES, train_lora

__all__ = ["NODES", "train_lora"]
