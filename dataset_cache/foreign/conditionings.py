"""Outputs of text encoders in trainers' caches → ComfyUI's CONDITIONING, where both are certainly the same."""

from typing import Any

import torch

from ...errors import CacheError

_CLIP_TOKENS = 77
_WAN_TOKENS = 512
_T5_WIDTH = 4096


def sdxl(clip_l: torch.Tensor, clip_g: torch.Tensor, pooled: torch.Tensor) -> Any:
    """Both encoders' states beside each other, with the pooled output of the larger one."""
    _expect("hidden states", clip_l, (_CLIP_TOKENS, 768))
    _expect("hidden states", clip_g, (_CLIP_TOKENS, 1280))
    return sdxl_joined(torch.cat([clip_l, clip_g], dim=-1), pooled)


def sdxl_joined(states: torch.Tensor, pooled: torch.Tensor) -> Any:
    _expect("hidden states", states, (_CLIP_TOKENS, 2048))
    _expect("pooled output", pooled, (1280,))
    return [[states[None], {"pooled_output": pooled[None]}]]


def flux(t5: torch.Tensor, pooled: torch.Tensor) -> Any:
    """The states of T5 with all their padding, with the pooled output of CLIP-L."""
    _expect("T5 states", t5, (None, _T5_WIDTH))
    _expect("pooled output", pooled, (768,))
    return [[t5[None], {"pooled_output": pooled[None]}]]


def sd3(clips: torch.Tensor, t5: torch.Tensor, pooled: torch.Tensor) -> Any:
    """The states of both CLIPs, widened with zeros, then those of T5."""
    _expect("CLIP states", clips, (_CLIP_TOKENS, 2048))
    _expect("T5 states", t5, (None, _T5_WIDTH))
    _expect("pooled output", pooled, (2048,))
    wide = torch.nn.functional.pad(clips, (0, _T5_WIDTH - clips.shape[-1])).to(t5.dtype)
    return [[torch.cat([wide, t5])[None], {"pooled_output": pooled[None]}]]


def wan(t5: torch.Tensor) -> Any:
    """The states of UMT5 up to the last token, filled with zeros to the length that the model sees."""
    _expect("T5 states", t5, (None, _T5_WIDTH))
    if len(t5) > _WAN_TOKENS:
        raise CacheError(f"its T5 states have {len(t5)} tokens, at most {_WAN_TOKENS} were expected")
    return [[torch.nn.functional.pad(t5, (0, 0, 0, _WAN_TOKENS - len(t5)))[None], {"pooled_output": None}]]


def _expect(what: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    fits = tensor.ndim == len(shape) and all(want in (None, axis) for want, axis in zip(shape, tensor.shape))
    if not fits or not tensor.numel() or not tensor.is_floating_point():
        expected = tuple("tokens" if axis is None else axis for axis in shape)
        raise CacheError(f"its {what} have shape {tuple(tensor.shape)}, expected {expected}")
