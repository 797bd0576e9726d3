"""A model for files of other trainers, with the layers that the golden ones were made for and a fused layer."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from streamcache.lora_train.adapters import AdapterSettings, build_network, lora_file
from streamcache.lora_train.denoiser import LayerRows

GOLDEN = Path(__file__).resolve().parents[2] / "golden/lora-files"
EXPECTED = load_file(GOLDEN / "expected.safetensors")


class Model(nn.Module):
    """The layers that the golden files were made for, and a fused one."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.linear = nn.Linear(24, 16)
        self.image = nn.Conv2d(12, 16, 3, padding=1)
        self.volume = nn.Conv3d(12, 16, (1, 3, 3), padding=(0, 1, 1))
        self.qkv = nn.Linear(6, 12)
        for name, layer in self.named_children():
            if name != "qkv":
                layer.weight.data = EXPECTED[f"base.{name}"].clone()
        self.requires_grad_(False)

    def adaptable(self):
        return dict(self.named_children())

    def groups(self):
        return {"attention": ["linear"], "all": list(self.adaptable())}

    def export_names(self, naming):
        return {
            name: {"comfyui": "diffusion_model.", "kohya": "lora_unet_"}.get(naming, "") + name
            for name in self.adaptable()
        }

    def other_names(self):
        rows = {"to_q": range(4), "to_k": range(4, 8), "to_v": range(8, 12), "swapped": (*range(6, 12), *range(6))}
        return {f"transformer.{name}": LayerRows("qkv", places) for name, places in rows.items()}


def settings(rank: int = 2, **changes) -> AdapterSettings:
    return AdapterSettings(**{"rank": rank, "targets": "linear", **changes})


def opened(tensors, metadata=None, model=None, **changes):
    """The adapters of a network that continues from these tensors, by module name."""
    file = lora_file.split_lora(tensors, metadata, "file.safetensors")
    return dict(build_network(model or Model(), settings(**changes), file).items())


def pair(prefix: str, outputs: int = 16, inputs: int = 24, rank: int = 2) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.lora_up.weight": torch.randn(outputs, rank),
        f"{prefix}.lora_down.weight": torch.randn(rank, inputs),
    }
