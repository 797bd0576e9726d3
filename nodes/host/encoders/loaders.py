"""Loaders: the host's own ways to load a CLIP or VAE by name, behind stand-ins that use them on demand."""

from collections.abc import Sequence

import comfy.sd
import folder_paths
import torch

import nodes as host_nodes

from .identity import clip_files_identity, vae_files_identity, weight_names
from .on_demand import Lingering, OnDemandClip, OnDemandVae

NO_FILE = "none"


def clip_types() -> list[str]:
    """The choices of the host's loaders for one and for two text encoders."""
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
    # The small autoencoders of one family differ by a scale that the host knows by their name.
    kind = "" if len(files) == 1 else name
    return OnDemandVae(Lingering(load, lambda: vae_files_identity(files, kind), "VAE", weight_names([name])))


def vae_files(name: str) -> list[str]:
    """The files that the host's Load VAE reads for this choice."""
    loader = host_nodes.VAELoader
    if name in loader.image_taes:
        found = folder_paths.get_filename_list("vae_approx")
        parts = [next(file for file in found if file.startswith(f"{name}_{part}.")) for part in ("encoder", "decoder")]
        return [folder_paths.get_full_path_or_raise("vae_approx", part) for part in parts]
    if name == "pixel_space":
        return []
    video = name.rpartition(".")[0] in loader.video_taes
    return [folder_paths.get_full_path_or_raise("vae_approx" if video else "vae", name)]
