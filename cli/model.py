"""Which model a command works on: the reference model from a file of its weights, or a model of ComfyUI by its name."""

import argparse

from ..dataset_cache.setting import parse
from ..lora_train.config import TrainConfig
from ..lora_train.denoiser import Denoiser
from ..lora_train.errors import TrainError
from ..lora_train.samples import Decode
from ..nodes.host.settings import SETTINGS, HostSettings
from ..reference import model as reference
from ..reference.denoiser import ReferenceDenoiser
from ..reference.vae import decode_pictures
from .host import add_host_options

PREFIX = "host_"


def add_model_options(parser: argparse.ArgumentParser) -> None:
    text = (
        "weights of the reference model (`python dev.py demo` makes some in demo/base.safetensors), "
        "or with --comfyui the name of a diffusion model or checkpoint there"
    )
    parser.add_argument("--model", required=True, metavar="FILE", help=text)
    group = add_host_options(parser)
    group.add_argument(
        "--vae",
        metavar="NAME",
        help="a VAE of ComfyUI, for sample pictures: some over the run, or as sample_every says",
    )
    for setting in SETTINGS.values():
        options = {"nargs": "?", "const": "true"} if setting.type is bool else {}
        flag, words = f"--{setting.name.replace('_', '-')}", f"{setting.limits.about} [{setting.default}]"
        group.add_argument(flag, dest=PREFIX + setting.name, metavar="…", help=words, **options)


def open_model(args: argparse.Namespace, config: TrainConfig) -> tuple[Denoiser, Decode | None]:
    """The model, and what turns its latents into pictures."""
    given = {name: getattr(args, PREFIX + name) for name in SETTINGS if getattr(args, PREFIX + name) is not None}
    if args.comfyui:
        return _host_model(args, config, HostSettings(**{n: parse(SETTINGS[n], text) for n, text in given.items()}))
    if args.vae or given:
        option = "vae" if args.vae else next(iter(given)).replace("_", "-")
        raise TrainError(f"--{option}: is for models of ComfyUI; say where it is with --comfyui FOLDER")
    return ReferenceDenoiser(reference.load(args.model)), decode_pictures


def _host_model(
    args: argparse.Namespace, config: TrainConfig, settings: HostSettings
) -> tuple[Denoiser, Decode | None]:
    from ..nodes.host.encoders import models  # only in the host, where its modules can be imported
    from ..nodes.training import make_denoiser

    denoiser = make_denoiser(models.open_model(args.model), config, settings)
    if not args.vae:
        return denoiser, None
    pictures = models.open_vae(args.vae)
    return denoiser, lambda latents: denoiser.decode(pictures, latents)
