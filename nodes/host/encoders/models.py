"""Base models of the host by name, for commands without a server: what its loader nodes give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import folder_paths

import nodes as host_nodes

from ....dataset_cache import CacheError
from ....lora_train import TrainError
from .encoders import image_encoder, text_encoder
from .loaders import clip_files, clip_names, clip_on_demand, clip_types, vae_names, vae_on_demand

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


def named_encoders(vae: str | None, clips: Sequence[str], kind: str) -> dict[str, Any]:
    """Encoders of pictures and captions, by the names that the host's loaders list."""
    wanted = [("--vae", vae, vae_names()), *(("--clip", clip, clip_names()) for clip in clips)]
    wanted += [("--clip-type", kind, clip_types())] if clips else []
    for option, name, known in wanted:
        if name is not None and name not in known:
            raise CacheError(f"{option} {name}: the host has no such one, but {', '.join(known) or 'none'}")
    return {
        "image_encoder": image_encoder(vae_on_demand(vae)) if vae else None,
        "text_encoder": text_encoder(clip_on_demand(clip_files(clips), kind)) if clips else None,
    }
