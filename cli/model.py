"""Which model a command works on: the reference model from a file of its weights, or a model of ComfyUI by its name."""

import argparse

from ..dataset_cache import parse_setting
from ..lora_train import Decode, Denoiser, TrainConfig, TrainError
from ..nodes.host import HOST_SETTINGS, HostSettings
from ..reference import ReferenceDenoiser, decode_pictures, load_model
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
    for setting in HOST_SETTINGS.values():
        options = {"nargs": "?", "const": "true"} if setting.type is bool else {}
        flag, words = f"--{setting.name.replace('_', '-')}", f"{setting.limits.about} [{setting.default}]"
        group.add_argument(flag, dest=PREFIX + setting.name, metavar="…", help=words, **options)


def open_model(args: argparse.Namespace, config: TrainConfig) -> tuple[Denoiser, Decode | None]:
    """The model, and what turns its latents into pictures."""
    given = {name: getattr(args, PREFIX + name) for name in HOST_SETTINGS if getattr(args, PREFIX + name) is not None}
    if args.comfyui:
        return _host_model(
            args, config, HostSettings(**{n: parse_setting(HOST_SETTINGS[n], text) for n, text in given.items()})
        )
    if args.vae or given:
        option = "vae" if args.vae else next(iter(given)).replace("_", "-")
        raise TrainError(f"--{option}: is for models of ComfyUI; say where it is with --comfyui FOLDER")
    return ReferenceDenoiser(load_model(args.model)), decode_pictures


def _host_model(
    args: argparse.Namespace, config: TrainConfig, settings: HostSettings
) -> tuple[Denoiser, Decode | None]:
    from ..nodes.host.encoders import open_model, open_vae  # only in the host, where its modules can be imported
    from ..nodes.host.model import make_denoiser

    denoiser = make_denoiser(open_model(args.model), config, settings)
    if not args.vae:
        return denoiser, None
    pictures = open_vae(args.vae)
    return denoiser, lambda latents: denoiser.decode(pictures, latents)
