"""Models by the names that ComfyUI's loader nodes list: diffusion models, and CLIP and VAE that load on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import comfy.sd
import folder_paths
import torch

import nodes as host_nodes

from ....dataset_cache import CacheError, closest_name
from ....lora_train import TrainError
from .encoders import image_encoder, text_encoder
from .identity import clip_files_identity, vae_files_identity, weight_names
from .on_demand import Lingering, OnDemandClip, OnDemandVae

NO_FILE = "none"
MODEL_FOLDERS = ("diffusion_models", "checkpoints")


def clip_types() -> list[str]:
    """The choices of ComfyUI's loaders for one and for two text encoders."""
    lists = [
        loader.INPUT_TYPES()["required"]["type"][0] for loader in (host_nodes.CLIPLoader, host_nodes.DualCLIPLoader)
    ]
    return list(dict.fromkeys(name for names in lists for name in names))


def clip_names() -> list[str]:
    return folder_paths.get_filename_list("text_encoders")


def vae_names() -> list[str]:
    return host_nodes.VAELoader.vae_list(host_nodes.VAELoader)


def clip_files(names: Sequence[str]) -> list[str]:
    return [folder_paths.get_full_path_or_raise("text_encoders", name) for name in names]


def clip_on_demand(files: Sequence[str], kind: str, device: str = "default") -> OnDemandClip:
    clip_type = getattr(comfy.sd.CLIPType, kind.upper(), comfy.sd.CLIPType.STABLE_DIFFUSION)
    options = {}
    if device == "cpu":
        options = {"load_device": torch.device("cpu"), "offload_device": torch.device("cpu")}

    def load() -> comfy.sd.CLIP:
        embeddings = folder_paths.get_folder_paths("embeddings")
        return comfy.sd.load_clip(list(files), embeddings, clip_type, options)

    def identity() -> str:
        return clip_files_identity(files, clip_type.name)

    return OnDemandClip(Lingering(load, identity, "CLIP", weight_names(files)))


def vae_on_demand(name: str) -> OnDemandVae:
    def load() -> comfy.sd.VAE:
        return host_nodes.VAELoader().load_vae(name)[0]

    files = vae_files(name)
    # The small autoencoders (TAESD) of one family share files and differ by a scale that depends on the name.
    kind = "" if len(files) == 1 else name
    return OnDemandVae(Lingering(load, lambda: vae_files_identity(files, kind), "VAE", weight_names([name])))


def vae_files(name: str) -> list[str]:
    """The files that ComfyUI's Load VAE reads for this choice."""
    loader = host_nodes.VAELoader
    if name in loader.image_taes:
        found = folder_paths.get_filename_list("vae_approx")
        parts = [next(file for file in found if file.startswith(f"{name}_{part}.")) for part in ("encoder", "decoder")]
        return [folder_paths.get_full_path_or_raise("vae_approx", part) for part in parts]
    if name == "pixel_space":
        return []
    video = name.rpartition(".")[0] in loader.video_taes
    return [folder_paths.get_full_path_or_raise("vae_approx" if video else "vae", name)]


def open_model(name: str) -> Any:
    """A MODEL from a diffusion model file or a checkpoint, for commands without a server."""
    files = {folder: folder_paths.get_filename_list(folder) for folder in MODEL_FOLDERS}
    if name in files["diffusion_models"]:
        return host_nodes.UNETLoader().load_unet(name, "default")[0]
    if name in files["checkpoints"]:
        return host_nodes.CheckpointLoaderSimple().load_checkpoint(name)[0]
    raise TrainError(_not_found("--model", name, [file for folder in MODEL_FOLDERS for file in files[folder]]))


def open_vae(name: str) -> OnDemandVae:
    """A VAE that is loaded when sample images are decoded, and freed afterwards."""
    if name not in vae_names():
        raise TrainError(_not_found("--vae", name, vae_names()))
    return vae_on_demand(name)


def open_clip(names: Sequence[str], kind: str) -> OnDemandClip:
    """A text encoder that is loaded when texts are encoded, and freed afterwards."""
    for name in names:
        if name not in clip_names():
            raise TrainError(_not_found("--clip", name, clip_names()))
    if kind not in clip_types():
        raise TrainError(_not_found("--clip-type", kind, clip_types()))
    return clip_on_demand(clip_files(names), kind)


def named_encoders(vae: str | None, clips: Sequence[str], kind: str) -> dict[str, Any]:
    """The encoders of a plan by the names that ComfyUI's loaders list, for commands without a server."""
    wanted = [("--vae", vae, vae_names()), *(("--clip", clip, clip_names()) for clip in clips)]
    wanted += [("--clip-type", kind, clip_types())] if clips else []
    for option, name, known in wanted:
        if name is not None and name not in known:
            raise CacheError(_not_found(option, name, known))
    return {
        "image_encoder": image_encoder(vae_on_demand(vae)) if vae else None,
        "text_encoder": text_encoder(clip_on_demand(clip_files(clips), kind)) if clips else None,
    }


def _not_found(option: str, name: str, known: Sequence[str]) -> str:
    hint = closest_name(name, known) or f"; available: {', '.join(known) or 'none'}"
    return f"{option} {name}: not found in ComfyUI{hint}"
