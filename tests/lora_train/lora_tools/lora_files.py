"""LoRA files of every kind on disk, and what each does to a weight by the direct formula of its kind."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

UNET, COMFY, PEFT = "lora_unet_", "diffusion_model.", "transformer."
NAMES = ("blocks.0.attn.to_q", "blocks.0.mlp.fc1", "blocks.1.attn.to_q")
SIZES = {"blocks.0.attn.to_q": (24, 20), "blocks.0.mlp.fc1": (40, 24), "blocks.1.attn.to_q": (24, 20)}
CONV, CONV_SIZE = "blocks.2.conv", (12, 10, 3, 3)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def spell(naming: str, name: str) -> str:
    return UNET + name.replace(".", "_") if naming == "kohya" else {"comfyui": COMFY, "diffusers": PEFT}[naming] + name


def lora(rank: int = 4, alpha: float | None = 2.0, naming: str = "kohya", seed: int = 0) -> dict:
    """A LoRA of three linear layers and a convolution."""
    tensors = {}
    for at, name in enumerate((*NAMES, CONV)):
        size = SIZES.get(name, CONV_SIZE)
        up = random(size[0], rank, *[1] * (len(size) - 2), seed=seed * 100 + at)
        down = random(rank, *size[1:], seed=seed * 100 + 50 + at)
        prefix = spell(naming, name)
        if naming == "diffusers":
            tensors |= {f"{prefix}.lora_B.weight": up, f"{prefix}.lora_A.weight": down}
        else:
            tensors |= {f"{prefix}.lora_up.weight": up, f"{prefix}.lora_down.weight": down}
            tensors |= {} if alpha is None else {f"{prefix}.alpha": torch.tensor(alpha)}
    return tensors


def changes(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By flat name: the change of each weight [outputs, inputs × kernel] of a LoRA, in float64."""
    tensors = {key: value.double() for key, value in tensors.items()}
    found = {}
    for key, down in tensors.items():
        for one, other in (("lora_down", "lora_up"), ("lora_A", "lora_B")):
            if f".{one}.weight" in key:
                prefix = key.partition(f".{one}")[0]
                up = tensors[f"{prefix}.{other}.weight"]
                scale = tensors.get(f"{prefix}.alpha", torch.tensor(float(len(down)))) / len(down)
                found[flat(prefix)] = scale * up.flatten(1) @ down.flatten(1)
    return found


def flat(prefix: str) -> str:
    for beginning in (UNET, COMFY, PEFT):
        prefix = prefix.removeprefix(beginning)
    return prefix.replace(".", "_")


def write(path: Path, tensors: dict, metadata: dict | None = None) -> Path:
    save_file({key: value.contiguous() for key, value in tensors.items()}, path, metadata)
    return path


def write_header(path: Path, header: dict, data: bytes = b"") -> Path:
    """A file with any header, also one that no writer would make."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def close(found: dict, expected: dict, tolerance: float = 2e-6) -> None:
    """Equal to fp32 tolerance, relative to the size of each change."""
    assert found.keys() == expected.keys()
    for name, change in expected.items():
        error = float((found[name] - change).norm() / change.norm().clamp(min=1e-30))
        assert error < tolerance, f"{name}: {error}"
