"""The nodes Train LoRA and Train Options, and a training as its node shows it."""

from .train import NODES, train_lora

__all__ = ["NODES", "train_lora"]
