"""Encoders: the host's VAE and CLIP objects as dataset_cache meets them, however they were loaded."""

import contextlib
from collections.abc import Iterator
from typing import Any

import comfy.model_management as management
import torch

from ....dataset_cache import CacheError, Encoder, ImageEncoder, Surroundings
from . import embeddings, scales
from .identity import clip_identity, name_of, vae_identity
from .on_demand import OnDemandClip, OnDemandVae


def image_encoder(vae: Any) -> ImageEncoder:
    """An encoder of pictures on a VAE of the host, or on a stand-in for one."""
    vae.throw_exception_if_invalid()  # a checkpoint may hold none
    return VaeEncoder(vae)


def text_encoder(clip: Any) -> Encoder:
    """An encoder of captions on a CLIP of the host, or on a stand-in for one."""
    if clip is None:
        raise CacheError("the CLIP input is empty: the checkpoint holds no text encoder; load one with Load CLIP")
    return ClipEncoder(clip)


class VaeEncoder:
    """Pictures [H, W, 3] in 0…1 become what the host's VAE Encode makes of each alone: the distribution's mode."""

    def __init__(self, vae: Any) -> None:
        self._vae = vae

    @property
    def name(self) -> str:
        return self._vae.weights if isinstance(self._vae, OnDemandVae) else name_of(self._vae)

    @property
    def identity(self) -> str:
        return self._vae.identity if isinstance(self._vae, OnDemandVae) else vae_identity(self._vae)

    @property
    def downscale(self) -> int:
        """Pixels that a latent pixel covers on each side. A stand-in is loaded for it only the first time ever."""
        return scales.known(self.identity, lambda: int(self._vae.spacial_compression_encode()))

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        with _lease(self._vae):
            yield

    def encode(self, items: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        management.throw_exception_if_processing_interrupted()
        with _lease(self._vae):
            # A VAE for video takes a batch of pictures for the frames of one video.
            single = self._vae.latent_dim == 3 and not self._vae.not_video
            groups = [[item] for item in items] if single else [items]
            latents = [self._vae.encode(torch.stack(group)) for group in groups]
        # Rows of a batch share memory: each is copied, so that keeping one keeps no other.
        return [{"samples": row.clone()} for batch in latents for row in batch.split(1)]


class ClipEncoder:
    """Captions become what the host's CLIP Text Encode makes of them. The host encodes one text at a time."""

    def __init__(self, clip: Any) -> None:
        self._clip = clip

    @property
    def name(self) -> str:
        return self._clip.weights if isinstance(self._clip, OnDemandClip) else name_of(self._clip)

    @property
    def identity(self) -> str:
        return self._clip.identity if isinstance(self._clip, OnDemandClip) else clip_identity(self._clip)

    @property
    def surroundings(self) -> Surroundings:
        return embeddings.surroundings()

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        with _lease(self._clip):
            yield

    def encode(self, items: list[str]) -> list[list]:
        with _lease(self._clip):
            return [self._encode(text) for text in items]

    def _encode(self, text: str) -> list:
        management.throw_exception_if_processing_interrupted()
        return self._clip.encode_from_tokens_scheduled(self._clip.tokenize(text))


def _lease(model: Any) -> contextlib.AbstractContextManager:
    """A stand-in is loaded for a phase; of all other models the host itself takes care."""
    return model.lease() if isinstance(model, (OnDemandVae, OnDemandClip)) else contextlib.nullcontext()
