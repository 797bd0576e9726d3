"""Base models of the host by name, for commands without a server: what its loader nodes give."""

from __future__ import annotations

from typing import Any

import folder_paths

import nodes as host_nodes

from ....lora_train.errors import TrainError
from .loaders import vae_names, vae_on_demand

FOLDERS = ("diffusion_models", "checkpoints")


def open_model(name: str) -> Any:
    """A MODEL out of a diffusion model's file or a checkpoint."""
    files = {folder: folder_paths.get_filename_list(folder) for folder in FOLDERS}
    if name in files["diffusion_models"]:
        return host_nodes.UNETLoader().load_unet(name, "default")[0]
    if name in files["checkpoints"]:
        return host_nodes.CheckpointLoaderSimple().load_checkpoint(name)[0]
    known = [file for folder in FOLDERS for file in files[folder]]
    raise TrainError(f"--model {name}: the host has no such one, but {', '.join(known) or 'none'}")


def open_vae(name: str) -> Any:
    """A VAE that is loaded when a sample picture is decoded, and freed after it."""
    if name not in vae_names():
        raise TrainError(f"--vae {name}: the host has no such one, but {', '.join(vae_names()) or 'none'}")
    return vae_on_demand(name)
