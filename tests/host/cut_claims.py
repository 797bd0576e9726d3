"""Scenario: which captions ComfyUI's own tokenizers cut. Most cut none: they make several rows, or have no limit."""

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.sd
import sentencepiece
import torch

from streamcache.nodes.host.encoders.encoders import text_encoder

from .claims import claim, hold

WHOLE = {
    "SD 1.5": ("sd1_clip", "SD1Tokenizer"),
    "SDXL": ("sdxl_clip", "SDXLTokenizer"),
    "SD 2": ("text_encoders.sd2_clip", "SD2Tokenizer"),
    "SD 3": ("text_encoders.sd3_clip", "SD3Tokenizer"),
    "Flux": ("text_encoders.flux", "FluxTokenizer"),
    "Flux 2 Klein": ("text_encoders.flux", "KleinTokenizer"),
    "PixArt": ("text_encoders.pixart_t5", "PixArtTokenizer"),
    "Qwen-Image": ("text_encoders.qwen_image", "QwenImageTokenizer"),
    "Z-Image": ("text_encoders.z_image", "ZImageTokenizer"),
}
WORDS = ["red", "cat", "dog", "house", "tree", "sun", "moon", "sea", "hill", "bird"]


def run(base: Path) -> dict:
    return hold("cut_claims", globals(), base)


def text_of(words: int) -> str:
    return " ".join(WORDS[number * 7 % 10] for number in range(words))


def encoder_of(make: Callable[..., Any], **data: Any) -> Any:
    clip = comfy.sd.CLIP(no_init=True)
    clip.tokenizer, clip.tokenizer_options = make(tokenizer_data=data), {}
    return text_encoder(clip)


def pixeldit() -> Any:
    """Its tokenizer comes with the weights, so one is trained here."""
    from comfy.text_encoders import pixeldit as family

    model, lines = io.BytesIO(), [family._PIXELDIT_CHI_PROMPT, *(text_of(9 + n) for n in range(30))]
    options = {"vocab_size": 200, "hard_vocab_limit": False, "model_type": "unigram", "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(lines).split("\n")), model_writer=model, **options
    )
    data = torch.frombuffer(bytearray(model.getvalue()), dtype=torch.uint8)
    return encoder_of(family.PixelDiTGemma2Tokenizer, spiece_model=data)


@claim
def no_caption_is_cut_by_tokenizers_that_make_rows_or_have_no_limit(base: Path) -> None:
    for name, (module, tokenizer) in WHOLE.items():
        encoder = encoder_of(getattr(importlib.import_module(f"comfy.{module}"), tokenizer))
        for words in (1, 70, 74, 75, 76, 77, 200, 3000):
            assert not encoder.cuts(text_of(words)), (name, words)
        for text in ("", " ", "猫" * 500, "(a cat:1.2)", "a, " * 300, "embedding:nowhere"):
            assert not encoder.cuts(text), (name, text[:20])


@claim
def a_tokenizer_with_a_limit_cuts_exactly_what_is_beyond_it(base: Path) -> None:
    encoder = pixeldit()
    tokenize = encoder._clip.tokenize
    whole = [words for words in range(1, 500) if tokenize(text_of(words)) != tokenize(text_of(words - 1))]
    limit = max(whole)
    assert whole == list(range(1, limit + 1)) and 50 < limit < 400
    for words in (1, 10, limit - 1, limit):
        assert not encoder.cuts(text_of(words)), words
    for words in (limit + 1, limit + 2, 1000):
        assert encoder.cuts(text_of(words)), words
