"""Scenario: captions of ComfyUI's own text encoders, stored with and without their padding.

Their tokens are padded as their tokenizers pad them. The equality of rows is a matter of structure, not of weights.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from streamcache.dataset_cache import CacheWriter, open_cache, overview, realize
from streamcache.nodes.host.encoders.shared_forwards import encode_together
from streamcache.tests.support.samples import same

from . import small_families
from .claims import claim, hold
from .family_claims import gradients, loss_of
from .small_families import SMALL, make_patcher
from .small_text_encoders import TOKENS, make_clip

CAPTIONS = 5
WIDTH = 64  # of the small text encoders


@dataclass(frozen=True)
class Tokens:
    """How a tokenizer lays out a caption: a template, words, an end, padding up to a length."""

    length: int = 0
    end: int | None = 1
    pad: int = 0
    template: int = 0


FAMILIES = {
    # Zeros behind the words, because the encoder multiplies its output by the mask.
    "Wan": {"umt5xxl": Tokens(512)},
    "Cosmos": {"t5xxl": Tokens(512)},
    "AuraFlow": {"pile_t5xl": Tokens(256, end=2, pad=1)},
    "Stable Audio": {"t5base": Tokens(128)},
    # Masked, but not set to zero: with T5's relative positions, far rows of padding are equal.
    "Mochi": {"t5xxl": Tokens(256)},
    "LTXV": {"t5xxl": Tokens(128)},
    # Every caption begins with the same template.
    "Flux 2": {"mistral3_24b": Tokens(end=None, template=36)},
    "OmniGen 2": {"qwen25_3b": Tokens(end=None, template=23)},
    # Nothing that can be restored: the padding takes part in the attention, or has positions of its own.
    "Flux": {"l": Tokens(77, end=999, pad=999), "t5xxl": Tokens(256)},
    "SDXL": {"g": Tokens(77, end=999), "l": Tokens(77, end=999, pad=999)},
    "Flux 2 Klein": {"qwen3_4b": Tokens(512, end=None, pad=3, template=3)},
    "PixArt": {"t5xxl": Tokens()},
}
# At least so much of the bytes is saved, at 20 to 80 tokens. A GPU may round rows of a template differently.
SAVED = {
    "Wan": 0.85, "Cosmos": 0.85, "AuraFlow": 0.7, "Stable Audio": 0.45, "Mochi": 0.3, "LTXV": 0.01, "Flux 2": 0.2,
    "OmniGen 2": 0.15,
}  # fmt: skip


def run(base: Path) -> dict:
    return hold("trimmed_text_claims", globals(), base / "trimmed")


def tokens_of(name: str, count: int = CAPTIONS) -> list[dict[str, Any]]:
    """Tokens of captions of 20 to 80 words."""
    generator = torch.Generator().manual_seed(7)

    def draw(count: int) -> list[int]:
        return torch.randint(5, TOKENS - 5, (count,), generator=generator).tolist()

    templates = {part: draw(layout.template) for part, layout in FAMILIES[name].items()}

    def row(part: str, layout: Tokens, words: int) -> list[tuple[int, float]]:
        words = min(words, layout.length - 2) if 0 < layout.length < 80 else words
        ids = templates[part] + draw(words) + ([] if layout.end is None else [layout.end])
        return [(token, 1.0) for token in ids + [layout.pad] * (layout.length - len(ids))]

    lengths = [20 + 60 * number // (count - 1) for number in range(count)]
    return [{part: [row(part, layout, words)] for part, layout in FAMILIES[name].items()} for words in lengths]


def encode(name: str) -> list[list]:
    clip = make_clip(name)
    return [clip.encode_from_tokens_scheduled(tokens) for tokens in tokens_of(name)]


def write(path: Path, texts: list[list], latent: tuple[int, ...] = (4, 8, 8), trim: bool = True) -> Any:
    with CacheWriter(path, trim=trim) as writer:
        for number, text in enumerate(texts):
            drawn = torch.randn(1, *latent, generator=torch.Generator().manual_seed(number))
            writer.add({"samples": drawn}, text, f"caption {number}", f"{number}.png")
    return open_cache(path, check=True)


def stored(cache: Any) -> int:
    return sum(shard.bytes for shard in cache.manifest.shards)


@claim
def f10_captions_of_every_family_come_back_bit_for_bit(folder: Path) -> None:
    for name in FAMILIES:
        texts = encode(name)
        whole, trimmed = (write(folder / f"{name} {trim}", texts, trim=trim) for trim in (False, True))
        for cache in (whole, trimmed):
            assert all(same(realize(cache[i].conditioning), text) for i, text in enumerate(texts)), name
            batch = cache.read_batch(range(len(texts)), buffers=cache.buffers(len(texts)))
            assert same(batch.conditionings, texts), name
        size = overview(whole.path).bytes_untrimmed
        saved = (stored(whole) - stored(trimmed)) / size
        assert (saved >= SAVED[name]) if name in SAVED else (saved == 0), f"{name}: {saved:.1%} saved"
        assert trimmed.manifest.requires == (("padding",) if name in SAVED else ()), name


@claim
def f10_captions_that_share_forwards_are_trimmed_as_much(folder: Path) -> None:
    for name in ("Wan", "Flux 2"):
        clip, tokens = make_clip(name), [*tokens_of(name)[1:], *tokens_of(name)[3:]]
        texts = encode_together(clip, tokens)
        cache = write(folder / f"{name} together", texts)
        assert all(same(realize(cache[i].conditioning), text) for i, text in enumerate(texts)), name
        assert cache.manifest.requires == ("padding",), name


@claim
def f10_training_on_trimmed_captions_is_the_same_bit_for_bit(folder: Path) -> None:
    """Losses and the gradients of every adapter."""
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    small_families.WAN.update(text_dim=WIDTH, text_len=512)
    small_families.FLUX_2["context_in_dim"] = 3 * WIDTH
    small_families.COSMOS["crossattn_emb_channels"] = WIDTH
    for encoder, model in (("Wan", "Wan"), ("Flux 2", "Flux.2"), ("Cosmos", "Cosmos-Predict2")):
        texts, found = encode(encoder)[:4], []
        for trim in (False, True):
            cache = write(folder / f"{model} trained {trim}", texts, SMALL[model].latent, trim)
            assert cache.manifest.requires == (("padding",) if trim else ())
            denoiser = HostDenoiser(make_patcher(model))
            with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
                denoiser.prepare_for(cache)
                losses = [loss_of(denoiser, cache, rows) for rows in ([0, 1], [2, 3], [3])]
                found.append(([loss.item() for loss in losses], gradients(denoiser, cache)))
        (losses, grads), (trimmed_losses, trimmed_grads) = found
        assert losses == trimmed_losses and len({*losses}) == 3, f"{model}: {losses} {trimmed_losses}"
        assert grads and list(grads) == list(trimmed_grads), model
        assert all(torch.equal(value, trimmed_grads[part]) for part, value in grads.items()), model
