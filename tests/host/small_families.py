"""Models of other families, made directly from ComfyUI's own classes at a size that a test can afford.

Their patchers come from no loader that the host could run again, as those of GGUF loaders do.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

UNET = {
    "image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 64, "num_res_blocks": [1],
    "channel_mult": [1], "transformer_depth": [1], "transformer_depth_output": [1, 1], "transformer_depth_middle": 1,
    "use_spatial_transformer": True, "legacy": False, "num_classes": "sequential", "adm_in_channels": 2816,
    "context_dim": 48, "use_linear_in_transformer": True,
}  # fmt: skip
FLUX = {
    "image_model": "flux", "in_channels": 16, "out_channels": 16, "patch_size": 2, "vec_in_dim": 24,
    "context_in_dim": 48, "hidden_size": 64, "mlp_ratio": 4.0, "num_heads": 2, "depth": 1, "depth_single_blocks": 1,
    "axes_dim": [8, 12, 12], "theta": 10000, "qkv_bias": True, "guidance_embed": True, "txt_ids_dims": [],
}  # fmt: skip
FLUX_2 = {
    "image_model": "flux2", "in_channels": 128, "out_channels": 128, "patch_size": 1, "vec_in_dim": None,
    "context_in_dim": 48, "hidden_size": 64, "mlp_ratio": 3.0, "num_heads": 2, "depth": 1, "depth_single_blocks": 1,
    "axes_dim": [8, 8, 8, 8], "theta": 2000, "qkv_bias": False, "ops_bias": False, "guidance_embed": True,
    "global_modulation": True, "mlp_silu_act": True, "default_ref_method": "index", "ref_index_scale": 10.0,
    "txt_ids_dims": [3],
}  # fmt: skip
CHROMA = {
    "image_model": "chroma", "in_channels": 64, "out_channels": 64, "patch_size": 2, "vec_in_dim": 24,
    "context_in_dim": 48, "hidden_size": 64, "mlp_ratio": 2.0, "num_heads": 2, "depth": 1, "depth_single_blocks": 1,
    "axes_dim": [8, 12, 12], "theta": 10000, "qkv_bias": True, "txt_ids_dims": [], "in_dim": 64, "out_dim": 64,
    "hidden_dim": 64, "n_layers": 2,
}  # fmt: skip
WAN = {
    "image_model": "wan2.1", "model_type": "t2v", "dim": 48, "ffn_dim": 64, "num_heads": 2, "num_layers": 2,
    "in_dim": 16, "out_dim": 16, "text_dim": 48, "text_len": 16, "freq_dim": 16, "patch_size": (1, 2, 2),
    "window_size": (-1, -1), "qk_norm": True, "cross_attn_norm": True, "eps": 1e-6,
}  # fmt: skip
QWEN = {
    "image_model": "qwen_image", "in_channels": 64, "out_channels": 16, "num_layers": 2, "attention_head_dim": 32,
    "num_attention_heads": 2, "joint_attention_dim": 48, "pooled_projection_dim": 24, "axes_dims_rope": (8, 12, 12),
}  # fmt: skip
LUMINA = {
    "image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": 96, "cap_feat_dim": 48, "n_layers": 2,
    "qk_norm": True, "n_heads": 1, "n_kv_heads": 1, "axes_dims": [32, 32, 32], "axes_lens": [300, 512, 512],
    "rope_theta": 10000.0, "ffn_dim_multiplier": 1.0,
}  # fmt: skip
COSMOS = {
    "image_model": "cosmos_predict2", "max_img_h": 16, "max_img_w": 16, "max_frames": 4, "in_channels": 16,
    "out_channels": 16, "patch_spatial": 2, "patch_temporal": 1, "model_channels": 64, "concat_padding_mask": True,
    "crossattn_emb_channels": 48, "pos_emb_cls": "rope3d", "pos_emb_learnable": True, "pos_emb_interpolation": "crop",
    "use_adaln_lora": True, "adaln_lora_dim": 16, "num_blocks": 2, "num_heads": 2,
    "rope_h_extrapolation_ratio": 4.0, "rope_w_extrapolation_ratio": 4.0, "rope_t_extrapolation_ratio": 1.0,
}  # fmt: skip
ANIMA = {**COSMOS, "image_model": "anima"}
ERNIE = {
    "image_model": "ernie", "hidden_size": 64, "num_attention_heads": 2, "num_layers": 2, "ffn_hidden_size": 96,
    "text_in_dim": 48, "rope_axes_dim": (8, 12, 12),
}  # fmt: skip
LTXV = {
    "image_model": "ltxv", "cross_attention_dim": 64, "attention_head_dim": 32, "num_attention_heads": 2,
    "caption_channels": 48, "num_layers": 2,
}  # fmt: skip
HUNYUAN = {
    "image_model": "hunyuan_video", "in_channels": 16, "out_channels": 16, "patch_size": [1, 2, 2], "vec_in_dim": 24,
    "context_in_dim": 48, "hidden_size": 64, "mlp_ratio": 2.0, "num_heads": 2, "depth": 1, "depth_single_blocks": 1,
    "axes_dim": [8, 12, 12], "theta": 256, "qkv_bias": True, "guidance_embed": True, "byt5": False, "meanflow": False,
    "use_cond_type_embedding": False, "vision_in_dim": None, "meanflow_sum": False,
}  # fmt: skip


@dataclass(frozen=True)
class SmallFamily:
    """How a small model is made, and what a sample of it looks like."""

    config: str  # the class in comfy.supported_models
    unet: dict[str, Any]
    latent: tuple[int, ...]  # a bucket's shape
    pooled: int = 0
    more: dict[str, Any] = field(default_factory=dict)
    smaller: Callable[[], AbstractContextManager[None]] = nullcontext  # for sizes that no configuration has


@contextmanager
def small_text_adapter() -> Iterator[None]:
    """Anima's own text layers have one size, 150 million weights."""
    import comfy.ldm.anima.model as anima

    whole = anima.LLMAdapter
    sizes = {"source_dim": 48, "target_dim": 48, "model_dim": 48, "num_layers": 1, "num_heads": 2}
    anima.LLMAdapter = lambda **settings: whole(**sizes, **settings)
    try:
        yield
    finally:
        anima.LLMAdapter = whole


# Two tokens of each caption are padding.
PADDED = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])


SMALL = {
    "SDXL": SmallFamily("SDXL", UNET, (4, 8, 8), pooled=1280),
    "Flux": SmallFamily("Flux", FLUX, (16, 8, 8), pooled=24),
    "Flux.2": SmallFamily("Flux2", FLUX_2, (128, 4, 4)),
    "Chroma": SmallFamily("Chroma", CHROMA, (16, 8, 8)),
    "Wan": SmallFamily("WAN21_T2V", WAN, (16, 1, 8, 8)),
    "Qwen-Image": SmallFamily("QwenImage", QWEN, (16, 8, 8)),
    "Lumina 2": SmallFamily("Lumina2", LUMINA, (16, 8, 8), more={"num_tokens": 7}),
    "Cosmos-Predict2": SmallFamily("CosmosT2IPredict2", COSMOS, (16, 1, 8, 8)),
    "Anima": SmallFamily(
        "Anima",
        ANIMA,
        (16, 1, 8, 8),
        more={"t5xxl_ids": torch.tensor([3, 9, 1]), "t5xxl_weights": torch.tensor([1.0, 0.5, 1.0])},
        smaller=small_text_adapter,
    ),
    "Ernie": SmallFamily("ErnieImage", ERNIE, (128, 4, 4)),
    "LTXV": SmallFamily("LTXV", LTXV, (128, 1, 4, 4), more={"attention_mask": PADDED}),
    "HunyuanVideo": SmallFamily("HunyuanVideo", HUNYUAN, (16, 1, 8, 8), pooled=24, more={"attention_mask": PADDED}),
}
TEXT_WIDTH = 48


def make_patcher(name: str, change: Callable[[Any], None] = lambda model: None) -> Any:
    """A MODEL with random weights, made under inference mode as by a loader."""
    import comfy.model_patcher
    import comfy.supported_models

    family, cpu = SMALL[name], torch.device("cpu")
    with torch.inference_mode():
        config = getattr(comfy.supported_models, family.config)({**family.unet, "dtype": torch.float32})
        with family.smaller():
            model = config.get_model({}, "", device=cpu)
        generator = torch.Generator().manual_seed(1)
        for value in model.parameters():
            inputs = value.numel() // max(len(value), 1) if value.ndim > 1 else 0
            drawn = torch.randn(value.shape, generator=generator) / max(inputs, 1) ** 0.5
            value.copy_(drawn if inputs else 1 + 0.1 * drawn)
        change(model)
        return comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def make_samples(name: str, count: int, tokens: int = 7) -> list[dict[str, Any]]:
    """Arguments for a cache writer: latents of one bucket, each with its own text."""
    family = SMALL[name]
    generator = torch.Generator().manual_seed(2)
    samples = []
    for number in range(count):
        extras = {"pooled_output": torch.randn(1, family.pooled, generator=generator)} if family.pooled else {}
        text = torch.randn(1, tokens, TEXT_WIDTH, generator=generator)
        latent = {"samples": torch.randn(1, *family.latent, generator=generator)}
        samples.append(
            {"latent": latent, "conditioning": [[text, {**extras, **family.more}]], "caption": f"caption {number}"}
        )
    return samples
