"""The reference text encoder: a fixed vector for every word, mixed with the word before it. It needs no weights."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

VERSION = 1
WIDTH = 64
STEP = 8  # token counts are multiples of this, so that captions of like length stack
BEFORE = 0.5  # how much of the word before a word hears: "on blue" is not "blue circle"


def encode(caption: str) -> list[list[Any]]:
    """A conditioning [[tokens [1, T, 64], {"pooled_output": [1, 64]}]]; rows of zeros in it are padding."""
    words = ["<start>", *re.findall(r"\w+|[^\w\s]", caption.lower())]
    vectors = torch.stack([word_vector(word) for word in words])
    vectors[1:] += BEFORE * vectors[:-1].roll(1, dims=-1)  # rolled: a word before is not the word itself
    tokens = torch.zeros(1, -(-len(words) // STEP) * STEP, WIDTH)
    tokens[0, : len(words)] = vectors
    pooled = vectors.sum(0, keepdim=True) / len(words) ** 0.5
    return [[tokens, {"pooled_output": pooled}]]


@lru_cache(maxsize=65536)
def word_vector(word: str) -> Tensor:
    """[64] of unit variance, from the word's letters alone: the same everywhere and always."""
    seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=7).digest(), "little")
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))
