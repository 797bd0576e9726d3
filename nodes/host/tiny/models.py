"""Tiny models that draw colored shapes, made from ComfyUI's own classes: MODEL (SD3), CLIP (CLIP-L) and VAE (TAESD).

The weights of the MODEL and the VAE are in tiny.safetensors; `python dev.py pretrain` writes it. The CLIP needs no
file: every token has a fixed vector, and words are told apart by these alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import comfy.latent_formats
import comfy.model_management as management
import comfy.model_patcher
import comfy.sd
import comfy.sd1_clip
import comfy.supported_models
import comfy.supported_models_base
import comfy.taesd.taesd
import numpy
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Weights = Mapping[str, Tensor]

FILE = Path(__file__).with_name("tiny.safetensors")
TEXT_WIDTH, CAPTION_TOKENS = 64, 24
CLIP = {
    "hidden_size": TEXT_WIDTH,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 2 * TEXT_WIDTH,
    "max_position_embeddings": CAPTION_TOKENS,
}
WIDTH = 128  # ComfyUI derives it from the depth: 64 per head
MODEL = {
    "in_channels": 4,
    "patch_size": 2,
    "depth": WIDTH // 64,
    "num_blocks": 4,
    "input_size": None,
    "adm_in_channels": TEXT_WIDTH,
    "context_embedder_config": {
        "target": "torch.nn.Linear",
        "params": {"in_features": TEXT_WIDTH, "out_features": WIDTH},
    },
    "dtype": torch.float32,
}
LATENTS = comfy.latent_formats.SDXL  # 4 channels
SPREAD = 73.9  # the standard deviation of a byte
PREFIXES = MODEL_PREFIX, VAE_PREFIX = "model.", "vae."


def tiny_models() -> tuple[Any, Any, Any]:
    """MODEL, CLIP and VAE."""
    weights = read_weights(FILE)
    return make_model(weights), make_clip(), make_vae(weights)


def read_weights(file: Path) -> Weights:
    """The file stores them in half precision."""
    return {name: tensor.float() for name, tensor in load_file(file).items()}


def write_weights(file: Path, model: Weights, vae: Weights) -> None:
    """Write what `read_weights` reads."""
    parts = zip(PREFIXES, (model, vae), strict=True)
    save_file(
        {prefix + name: tensor.half().contiguous() for prefix, part in parts for name, tensor in part.items()}, file
    )


def new_network() -> torch.nn.Module:
    """The network of the MODEL, with weights that are not set."""
    return _model_config().get_model({}, "", device=torch.device("cpu")).diffusion_model


def make_model(weights: Weights) -> Any:
    """A transformer as Stable Diffusion 3 has it, on latents with 4 channels."""
    model = _model_config().get_model({}, "", device=management.unet_offload_device())
    model.diffusion_model.load_state_dict(_part(weights, MODEL_PREFIX))
    model.eval()
    devices = {"load_device": management.get_torch_device(), "offload_device": management.unet_offload_device()}
    return comfy.model_patcher.ModelPatcher(model, **devices)


def make_clip() -> Any:
    """A text encoder of CLIP's class. Captions of more than 24 tokens are encoded in several parts."""
    target = comfy.supported_models_base.ClipTarget(comfy.sd1_clip.SD1Tokenizer, comfy.sd1_clip.SD1ClipModel)
    options = {"clip_l_model_config": CLIP, "dtype": torch.float32}
    clip = comfy.sd.CLIP(target, tokenizer_data={"clip_l_max_length": CAPTION_TOKENS}, model_options=options)
    clip.cond_stage_model.clip_l.transformer.load_state_dict(_text_weights(clip.cond_stage_model.clip_l.transformer))
    return clip


def make_vae(weights: Weights) -> Any:
    """A small autoencoder (TAESD). It has fewer and narrower layers than ComfyUI's class: the rest is zeros."""
    stored = {**_part(weights, VAE_PREFIX), "vae_scale": torch.tensor(LATENTS.scale_factor)}
    shapes = comfy.taesd.taesd.TAESD(latent_channels=LATENTS.latent_channels).state_dict()
    return comfy.sd.VAE({name: _padded(stored.get(name), like) for name, like in shapes.items()}, dtype=torch.float32)


def _model_config() -> Any:
    config = comfy.supported_models.SD3(MODEL)
    config.latent_format = LATENTS()
    return config


def _part(weights: Weights, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _padded(tensor: Tensor | None, like: Tensor) -> Tensor:
    wide = torch.zeros(like.shape)
    if tensor is not None:
        wide[tuple(slice(side) for side in tensor.shape)] = tensor
    return wide


def _text_weights(transformer: torch.nn.Module) -> dict[str, Tensor]:
    """Random numbers that are the same on every system and with every version: bytes of a generator that is frozen."""
    draw = numpy.random.RandomState(0)
    return {name: _drawn(name, tensor.shape, draw) for name, tensor in sorted(transformer.state_dict().items())}


def _drawn(name: str, shape: torch.Size, draw: numpy.random.RandomState) -> Tensor:
    if len(shape) == 1:  # of a norm, or a bias
        return torch.full(shape, float("norm" in name and name.endswith("weight")))
    numbers = numpy.frombuffer(draw.bytes(shape.numel()), dtype=numpy.int8).astype(numpy.float32)
    scale = 1.0 if "token_embedding" in name else 0.5 if "position_embedding" in name else shape[1] ** -0.5
    return torch.from_numpy(numbers).reshape(shape) * (scale / SPREAD)
