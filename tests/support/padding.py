"""Tensors as text encoders make them: rows of words, then padding."""

import torch

from .samples import bits

WORDS, ZEROS = 6, 5  # rows of words, and of zeros whose signs differ, if there are any
KINDS = ("equal rows", "zeros with signs", "both", "nothing")


def padded(
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, ...] = (1, 64, 24),
    kind: str = "both",
    seed: int = 0,
    words: int = WORDS,
    axis: int = -2,
) -> torch.Tensor:
    """Random bits, from row `words` on replaced by padding along `axis`."""
    tensor, first = bits(shape, dtype, seed), bits(shape, dtype, seed + 1)
    rows, others = tensor.movedim(axis, 0), first.movedim(axis, 0)
    if kind in ("zeros with signs", "both"):
        rows[words:] = signed_zeros(others[words:])
    if kind in ("equal rows", "both"):
        start = words + ZEROS * (kind == "both")
        rows[start:] = rows[start : start + 1].clone()
    return tensor


def signed_zeros(values: torch.Tensor) -> torch.Tensor:
    """Zeros with the highest bits of these values; plain zeros if the type has no sign."""
    if not values.dtype.is_floating_point or values.dtype.itemsize == 1:
        return (
            torch.zeros((*values.shape, values.dtype.itemsize), dtype=torch.uint8)
            .view(values.dtype)
            .reshape(values.shape)
        )
    return torch.where(values.contiguous().view(WHOLE[values.dtype.itemsize]) < 0, -0.0, 0.0).to(values.dtype)


WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def caption(number: int, tokens: int = 96, width: int = 32, dtype: torch.dtype = torch.float32) -> list:
    """The conditioning of a caption of 4 to 23 words. Every tensor that an encoder may return is in it."""
    words = 4 + number % 20
    text = padded(dtype, (1, tokens, width), "both", 10 * number, words)
    mask = (torch.arange(tokens) < words)[None].long()
    return [
        [text, {"pooled_output": bits((1, 8), torch.float16, number), "attention_mask": mask, "again": (text, mask)}]
    ]
