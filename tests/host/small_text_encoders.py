"""Text encoders of many families, made from ComfyUI's own classes with narrow layers and random weights."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

CLIP = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64}
T5 = {"d_model": 64, "d_kv": 16, "num_heads": 2, "d_ff": 64, "vocab_size": 1000}
LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 1000,
}
TOKENS = 1000  # token ids are below this


@dataclass(frozen=True)
class SmallTextEncoder:
    """How to make one, and the names of the token lists that its tokenizer would return."""

    make: Callable[[], type]
    tokens: tuple[str, ...]
    t5: int = 64  # width


def _in(module: str, factory: str, *args: Any, **kwargs: Any) -> Callable[[], type]:
    """A class of ComfyUI, or what its factory returns."""

    def make() -> type:
        found = getattr(importlib.import_module(f"comfy.{module}"), factory)
        return found if isinstance(found, type) else found(*args, **kwargs)

    return make


def _te(module: str, factory: str = "te", **kwargs: Any) -> Callable[[], type]:
    return _in(f"text_encoders.{module}", factory, **kwargs)


LENGTHS = (40, 52)  # of texts, in tokens
FIXED = {"l": 77, "g": 77, "h": 77, "hydit_clip": 77}
TEXT_ENCODERS = {
    "SD 1.5": SmallTextEncoder(_in("sd1_clip", "SD1ClipModel"), ("l",)),
    "SD 2": SmallTextEncoder(_te("sd2_clip", "SD2ClipModel"), ("h",)),
    "SDXL": SmallTextEncoder(_in("sdxl_clip", "SDXLClipModel"), ("g", "l")),
    "Stable Cascade": SmallTextEncoder(_in("sdxl_clip", "StableCascadeClipModel"), ("g",)),
    "SD 3": SmallTextEncoder(_te("sd3_clip", "sd3_clip"), ("l", "g", "t5xxl"), t5=4096),
    "Flux": SmallTextEncoder(_te("flux", "flux_clip"), ("l", "t5xxl")),
    "Flux 2": SmallTextEncoder(_te("flux", "flux2_te"), ("mistral3_24b",)),
    "Flux 2 Klein": SmallTextEncoder(_te("flux", "klein_te"), ("qwen3_4b",)),
    "PixArt": SmallTextEncoder(_te("pixart_t5", "pixart_te"), ("t5xxl",)),
    "Mochi": SmallTextEncoder(_te("genmo", "mochi_te"), ("t5xxl",)),
    "LTXV": SmallTextEncoder(_te("lt", "ltxv_te"), ("t5xxl",)),
    "Cosmos": SmallTextEncoder(_te("cosmos"), ("t5xxl",)),
    "CogVideoX": SmallTextEncoder(_te("cogvideo", "cogvideo_te"), ("t5xxl",)),
    "AuraFlow": SmallTextEncoder(_te("aura_t5", "AuraT5Model"), ("pile_t5xl",)),
    "Stable Audio": SmallTextEncoder(_te("sa_t5", "SAT5Model"), ("t5base",)),
    "Wan": SmallTextEncoder(_te("wan"), ("umt5xxl",)),
    "HunyuanDiT": SmallTextEncoder(_te("hydit", "HyditModel"), ("hydit_clip", "mt5xl")),
    "HunyuanVideo": SmallTextEncoder(_te("hunyuan_video", "hunyuan_video_clip"), ("l", "llama")),
    "HunyuanImage": SmallTextEncoder(_te("hunyuan_image"), ("qwen25_7b", "byt5")),
    "HiDream": SmallTextEncoder(
        _te("hidream", "hidream_clip", dtype_t5=torch.float32, dtype_llama=torch.float32), ("l", "g", "t5xxl", "llama")
    ),
    "Lumina 2": SmallTextEncoder(_te("lumina2"), ("gemma2_2b",)),
    "NewBie": SmallTextEncoder(_te("newbie"), ("gemma", "jina")),
    "OmniGen 2": SmallTextEncoder(_te("omnigen2"), ("qwen25_3b",)),
    "Qwen-Image": SmallTextEncoder(_te("qwen_image"), ("qwen25_7b",)),
    "LongCat-Image": SmallTextEncoder(_te("longcat_image"), ("qwen25_7b",)),
    "Kandinsky 5": SmallTextEncoder(_te("kandinsky5"), ("qwen25_7b", "l")),
    "Z-Image": SmallTextEncoder(_te("z_image"), ("qwen3_4b",)),
    "Ovis": SmallTextEncoder(_te("ovis"), ("qwen3_2b",)),
    "Anima": SmallTextEncoder(_te("anima"), ("qwen3_06b", "t5xxl")),
    "Ernie": SmallTextEncoder(_te("ernie"), ("ministral3_3b",)),
    "Krea 2": SmallTextEncoder(_te("krea2"), ("qwen3vl_4b",)),
    "MiniMax H3": SmallTextEncoder(_te("minimax"), ("qwen3vl_32b",)),
    "Qwen 3.5": SmallTextEncoder(_te("qwen35"), ("qwen35_2b",)),
}


def make_clip(name: str) -> Any:
    """A CLIP as ComfyUI's loaders make one, without a tokenizer."""
    import comfy.model_patcher
    import comfy.sd

    family, cpu = TEXT_ENCODERS[name], torch.device("cpu")
    with torch.inference_mode(), _narrow(family):
        model = family.make()(device=cpu, dtype=torch.float32, model_options={})
        generator = torch.Generator().manual_seed(1)
        for part, value in model.named_parameters():
            if ".visual." in part:  # large, and text does not use it
                continue
            inputs = value.numel() // max(len(value), 1) if value.ndim > 1 else 0
            drawn = torch.randn(value.shape, generator=generator) / max(inputs, 1) ** 0.5
            value.copy_(drawn if inputs else 1 + 0.1 * drawn)
    clip = comfy.sd.CLIP(no_init=True)
    clip.cond_stage_model = model
    clip.patcher = comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)
    clip.layer_idx, clip.tokenizer_options = None, {}
    clip.use_clip_schedule, clip.apply_hooks_to_conds = False, None
    return clip


def make_tokens(name: str, texts: int) -> list[dict[str, Any]]:
    """Tokens of several texts, of two lengths by turns."""
    generator = torch.Generator().manual_seed(2)

    def row(length: int) -> list[tuple[int, float]]:
        return [(int(token), 1.0) for token in torch.randint(5, TOKENS, (length,), generator=generator)]

    parts = TEXT_ENCODERS[name].tokens
    return [{part: [row(FIXED.get(part, LENGTHS[number % 2]))] for part in parts} for number in range(texts)]


@contextlib.contextmanager
def _narrow(family: SmallTextEncoder) -> Iterator[None]:
    """Every network that is made gets narrow layers; their number and kind stay."""
    import comfy.clip_model
    import comfy.sd1_clip
    import comfy.text_encoders.bert
    import comfy.text_encoders.jina_clip_2
    import comfy.text_encoders.t5

    kinds = {
        comfy.clip_model.CLIPTextModel: CLIP,
        comfy.text_encoders.t5.T5: {**T5, "d_model": family.t5},
        comfy.text_encoders.bert.BertModel: CLIP,
        comfy.text_encoders.jina_clip_2.XLMRobertaModel: {**CLIP, "vocab_size": TOKENS},
    }
    wide = comfy.sd1_clip.SDClipModel.__init__

    def narrow(self: Any, *args: Any, model_options: Any = {}, **kwargs: Any) -> None:  # noqa: B006
        sizes = kinds.get(kwargs.get("model_class", comfy.clip_model.CLIPTextModel), LLAMA)
        named = model_options.get("model_name", "clip_l" if kwargs.get("textmodel_json_config") is None else "")
        wide(self, *args, model_options={**model_options, f"{named}_model_config": sizes}, **kwargs)

    comfy.sd1_clip.SDClipModel.__init__ = narrow
    try:
        yield
    finally:
        comfy.sd1_clip.SDClipModel.__init__ = wide
