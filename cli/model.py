"""Which model a command works on: the reference model, from a file of its weights."""

import argparse

import torch
from PIL import Image

from ..lora_train.denoiser import Denoiser
from ..lora_train.reference import model as reference
from ..lora_train.reference import vae
from ..lora_train.reference.denoiser import ReferenceDenoiser
from ..lora_train.samples import Decode


def add_model_options(parser: argparse.ArgumentParser) -> None:
    text = "weights of the base model; `python dev.py demo` makes those of a small one in demo/base.safetensors"
    parser.add_argument("--model", required=True, metavar="FILE", help=text)


def open_model(args: argparse.Namespace) -> tuple[Denoiser, Decode]:
    """The model, and what turns its latents into pictures."""
    return ReferenceDenoiser(reference.load(args.model)), decode_pictures


def decode_pictures(latents: torch.Tensor) -> list[Image.Image]:
    """Latents of the reference VAE as pictures."""
    pixels = (vae.decode(latents) * 255).round().to(torch.uint8).cpu()
    return [Image.fromarray(one.numpy()) for one in pixels]
