"""Attention while training: the kernel that the settings name, or torch's own choice, or the MODEL's override."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import comfy.ldm.modules.attention
from torch import Tensor
from torch.nn import functional as F

from .kernels import reached

log = logging.getLogger("streamcache")


class TrainingAttention:
    """An override of ComfyUI's attention.

    Some of ComfyUI's faster attentions have no gradient, and its default on the CPU splits the work by free memory, so
    that no two runs round alike. An override of the MODEL (Attention Backend, or another pack's) is tested once for
    each kind of call, because it may choose another kernel for a mask, a length or a dtype. The choice follows from the
    call alone, so that a resumed run makes the same one. A kernel that the settings name comes before all of these.
    """

    def __init__(self, override: Callable[..., Tensor] | None = None, chosen: bool = False) -> None:
        self._override, self._chosen = override, chosen
        self._usable: dict[tuple, bool] = {}

    def __call__(self, _: Any, *args: Any, **kwargs: Any) -> Tensor:
        if self._chosen:
            return chosen_attention(*args, **kwargs)
        if self._override is None or not self._can_train(self._override, args, kwargs):
            return torch_attention(*args, **kwargs)
        return self._override(torch_attention, *args, **kwargs)

    def without_override(self) -> TrainingAttention:
        """For tensors without data: kernels of other packs need some."""
        return TrainingAttention(chosen=self._chosen)

    def _can_train(self, override: Callable[..., Tensor], args: tuple, kwargs: dict[str, Any]) -> bool:
        masked = kwargs.get("mask", args[4] if len(args) > 4 else None) is not None
        call = (masked, *((value.shape, value.dtype, value.device) for value in args[:3]))
        if call not in self._usable:
            usable = _has_gradient(override, args, kwargs)
            if not usable and all(self._usable.values()):
                log.warning("The MODEL's attention has no gradient. Training uses torch's attention instead.")
            self._usable[call] = usable
        return self._usable[call]


def torch_attention(*args: Any, **kwargs: Any) -> Tensor:
    return comfy.ldm.modules.attention.attention_pytorch(*args, **kwargs)


def chosen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Tensor | None = None,
    attn_precision: Any = None,
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """The same as `torch_attention` by the kernel that is enabled: ComfyUI's enables others itself."""
    if not skip_reshape:
        size = q.shape[-1] // heads
        q, k, v = (value.unflatten(-1, (-1, size)).transpose(1, 2) for value in (q, k, v))
    shared = q.shape[1] // k.shape[1]  # heads that have one key
    if shared > 1:
        k, v = (value.repeat_interleave(shared, dim=1) for value in (k, v))
    if mask is not None and mask.ndim < 4:
        mask = mask[None, None] if mask.ndim == 2 else mask[:, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return out if skip_output_reshape else out.transpose(1, 2).flatten(2)


def _has_gradient(override: Callable[..., Tensor], args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether gradients reach query, key and value. Also asked where none are needed, so that all calls are alike."""
    return all(reached(lambda *given: override(torch_attention, *given, *args[3:], **kwargs), args[:3]))
