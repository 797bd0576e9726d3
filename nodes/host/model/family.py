"""The family of a MODEL, and the names that other tools know it by, in the metadata of LoRA files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BaseNames:
    """The names of a base model in the metadata of its LoRAs."""

    architecture: str
    version: str


# By the name of ComfyUI's configuration class. A family that is not here has its own name in lower case.
KNOWN: dict[str, BaseNames] = {
    "SD15": BaseNames("stable-diffusion-v1", "sd_v1"),
    "SD20": BaseNames("stable-diffusion-v2-512", "sd_v2"),
    "SDXL": BaseNames("stable-diffusion-xl-v1-base", "sdxl_base_v1-0"),
    "SDXLRefiner": BaseNames("stable-diffusion-xl-v1-refiner", "sdxl_refiner_v1-0"),
    "SD3": BaseNames("stable-diffusion-v3", "sd3"),
    "Stable_Cascade_C": BaseNames("stable-cascade-v1-prior", "stable_cascade"),
    "SVD_img2vid": BaseNames("stable-video-diffusion-img2vid-v1", "svd"),
    "Flux": BaseNames("flux-1-dev", "flux1"),
    "FluxSchnell": BaseNames("flux-1-schnell", "flux1"),
    "Flux2": BaseNames("flux.2-dev", "flux2"),
    "Chroma": BaseNames("chroma", "chroma"),
    "HunyuanDiT": BaseNames("hunyuan-dit-g2-v1_2", "hunyuan_dit"),
    "HunyuanDiT1": BaseNames("hunyuan-dit-g2-v1_1", "hunyuan_dit"),
    "HunyuanVideo": BaseNames("hunyuan-video", "hunyuan_video"),
    "HunyuanImage21": BaseNames("hunyuan-image-2.1", "hunyuan_image"),
    "Lumina2": BaseNames("lumina-2", "lumina2"),
    "ZImage": BaseNames("z-image", "z_image"),
    "QwenImage": BaseNames("qwen-image", "qwen_image"),
    "WAN21_T2V": BaseNames("wan2.1", "wan2.1"),
    "WAN21_I2V": BaseNames("wan2.1", "wan2.1"),
    "WAN22_T2V": BaseNames("wan2.2", "wan2.2"),
    "Anima": BaseNames("anima", "anima"),
}
SD3_DEPTHS = {24: "stable-diffusion-v3-medium", 38: "stable-diffusion-v3.5-large"}
FLUX_2_WIDTHS = {3072: "flux.2-klein-4b", 4096: "flux.2-klein-9b"}


def families_of(patcher: Any) -> list[str]:
    """ComfyUI's class of the model's configuration, and the classes that it extends; of Flux.2 only the member."""
    found = getattr(patcher.model, "model_config", None)
    if found is None:
        return []
    families = [kind.__name__ for kind in type(found).__mro__]
    if "Flux2" in families:  # dev is far larger than the Klein models, and nothing like Flux.1, which its class extends
        return [_sized("Flux2", found.unet_config) or KNOWN["Flux2"].architecture]
    return families


def base_names(model: Any, prediction: str) -> BaseNames:
    """The names of a ComfyUI model's base."""
    family, sizes = type(model.model_config).__name__, model.model_config.unet_config
    names = KNOWN.get(family, BaseNames(family.lower(), family.lower()))
    if prediction == "v" and family in ("SD15", "SD20"):
        architecture = "stable-diffusion-v2-768-v" if family == "SD20" else names.architecture
        return BaseNames(architecture, f"{names.version}_v")
    return BaseNames(_sized(family, sizes) or names.architecture, names.version)


def _sized(family: str, sizes: Mapping[str, Any]) -> str | None:
    """The name of a family's member that differs from the others in size."""
    if family == "Flux2":
        return FLUX_2_WIDTHS.get(sizes.get("hidden_size", 0))
    if family == "SD3" and sizes.get("x_block_self_attn_layers"):
        return "stable-diffusion-v3.5-medium"
    return SD3_DEPTHS.get(sizes.get("depth", 0)) if family == "SD3" else None
