"""ComfyUI's VAE and CLIP objects as encoders of a dataset, however they were loaded."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import comfy.model_management as management
import folder_paths
import torch

from ....dataset_cache import (
    CacheError,
    Encoder,
    FolderWatch,
    ImageEncoder,
    Surroundings,
    digest_of,
    file_identity,
    memory_folder,
    replace_file,
)
from .identity import clip_identity, name_of, vae_identity
from .on_demand import OnDemandClip, OnDemandVae
from .shared_forwards import encode_together

_SCALES = "vae-scales.json"  # identity of a VAE → image pixels per latent pixel
_EMBEDDING = re.compile(r"embedding:([^\s<\[]+)")
_EMBEDDINGS = FolderWatch()
_WORDS = 10_000  # more than any tokenizer with a limit takes
_EMBEDDING_EXTENSIONS = ("", ".safetensors", ".pt", ".bin")


def image_encoder(vae: Any) -> ImageEncoder:
    """An image encoder on a ComfyUI VAE or a stand-in for one."""
    vae.throw_exception_if_invalid()  # a checkpoint may come without a VAE
    return VaeEncoder(vae)


def text_encoder(clip: Any) -> Encoder:
    """A caption encoder on a ComfyUI CLIP or a stand-in for one."""
    if clip is None:
        raise CacheError("the CLIP input is empty: the checkpoint has no text encoder; load one with Load CLIP")
    return ClipEncoder(clip)


def surroundings() -> Surroundings:
    """ComfyUI's textual-inversion embeddings as they are now. Only those that a caption names are hashed."""
    files = _EMBEDDINGS.files(folder_paths.get_folder_paths("embeddings"))
    identity = functools.cache(file_identity)
    return Surroundings(digest_of(files) if files else "", lambda caption: _named_in(caption, files, identity))


class VaeEncoder:
    """Encodes images [H, W, 3] in 0…1 as ComfyUI's VAE Encode does: the mode of the distribution."""

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
        """Image pixels per latent pixel on each side. Remembered on disk, so a stand-in is loaded for it only once."""
        scales, identity = _read_scales(), self.identity
        if identity not in scales:
            scales[identity] = int(self._vae.spacial_compression_encode())
            _write_scales(scales)
        return scales[identity]

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        with _lease(self._vae):
            yield

    def encode(self, items: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        management.throw_exception_if_processing_interrupted()
        with _lease(self._vae):
            # A video VAE would take a batch of images for the frames of one video.
            single = self._vae.latent_dim == 3 and not self._vae.not_video
            groups = [[item] for item in items] if single else [items]
            latents = [self._vae.encode(torch.stack(group)) for group in groups]
        # Rows of a batch share memory; without a copy, one kept row would keep the whole batch.
        return [{"samples": row.clone()} for batch in latents for row in batch.split(1)]


class ClipEncoder:
    """Encodes captions as ComfyUI's CLIP Text Encode does: one text bit for bit, several within rounding."""

    def __init__(self, clip: Any) -> None:
        self._clip = clip
        self._limited: bool | None = None  # whether the tokenizer cuts any text; None: unknown yet

    @property
    def name(self) -> str:
        return self._clip.weights if isinstance(self._clip, OnDemandClip) else name_of(self._clip)

    @property
    def identity(self) -> str:
        return self._clip.identity if isinstance(self._clip, OnDemandClip) else clip_identity(self._clip)

    @property
    def surroundings(self) -> Surroundings:
        return surroundings()

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        with _lease(self._clip):
            yield

    def length(self, text: str) -> list[Any]:
        """The numbers of tokens per network. Texts of one length share forwards."""
        management.throw_exception_if_processing_interrupted()
        with _lease(self._clip):
            return _lengths(self._clip.tokenize(text))

    def cuts(self, text: str) -> bool:
        """Whether the tokenizer ignores the end of a text: neither its last word nor another one changes the tokens.

        Most of ComfyUI's tokenizers cut nothing: those of CLIP make several rows of a long text, others have no limit.
        """
        with _lease(self._clip):
            if self._limited is None:
                self._limited = _is_cut(self._clip, "word " * _WORDS)
            return self._limited and _is_cut(self._clip, text)

    def encode(self, items: list[str]) -> list[list]:
        management.throw_exception_if_processing_interrupted()
        with _lease(self._clip):
            tokens = [self._clip.tokenize(text) for text in items]
            # A schedule changes the weights during a call, so its texts cannot wait for each other.
            scheduled = self._clip.use_clip_schedule and self._clip.patcher.forced_hooks is not None
            if len(items) > 1 and not scheduled:
                return encode_together(self._clip, tokens)
            return [self._clip.encode_from_tokens_scheduled(item) for item in tokens]


def _lease(model: Any) -> contextlib.AbstractContextManager:
    """Keeps a stand-in loaded for a phase of work; ComfyUI manages all other models itself."""
    return model.lease() if isinstance(model, (OnDemandVae, OnDemandClip)) else contextlib.nullcontext()


def _lengths(tokens: Any) -> list[Any]:
    """The lengths of all rows of tokens. A row is a list of (token, weight)."""
    values = list(tokens.values()) if isinstance(tokens, dict) else tokens
    rows = [value for value in values if isinstance(value, (list, dict))]
    return [count for row in rows for count in _lengths(row)] if rows else [len(values)]


def _is_cut(clip: Any, text: str) -> bool:
    text = text.rstrip()
    shorter, longer = text.rpartition(" ")[0] or text[:-1], f"{text} end"
    tokens = _plain(clip.tokenize(text))
    return bool(text) and all(_plain(clip.tokenize(other)) == tokens for other in (shorter, longer))


def _plain(tokens: Any) -> Any:
    """Tokens that can be compared: embeddings are tensors."""
    if isinstance(tokens, dict):
        return {name: _plain(value) for name, value in tokens.items()}
    if isinstance(tokens, (list, tuple)):
        return [_plain(value) for value in tokens]
    return tuple(tokens.shape) if isinstance(tokens, torch.Tensor) else tokens


def _read_scales() -> dict[str, int]:
    try:
        scales = json.loads((memory_folder() / _SCALES).read_text(encoding="utf-8"))
        return {key: value for key, value in scales.items() if type(value) is int and value > 0}
    except (OSError, ValueError, AttributeError):
        return {}


def _write_scales(scales: dict[str, int]) -> None:
    folder = memory_folder()
    with contextlib.suppress(OSError, CacheError):  # if it cannot be saved, the VAE is loaded for it again next time
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / _SCALES, json.dumps(scales).encode())


def _named_in(caption: str, files: Collection[str], identity: Callable[[str], str]) -> str:
    """A digest of the embedding files that a caption names (`embedding:style`); empty if it names none."""
    named = [name for found in _EMBEDDING.findall(caption) for name in _readings(found)]
    # A name may match several files. ComfyUI picks one by its own rules, so all of them count.
    used = [path for name in dict.fromkeys(named) for path in files if _matches(name, path)]
    return digest_of([identity(path) for path in dict.fromkeys(used)]) if used else ""


def _readings(text: str) -> Iterator[str]:
    """`style`, `style,` and `style:1.2)` all name style."""
    yield text
    yield re.split(r"[:,()]", text)[0]


def _matches(name: str, path: str) -> bool:
    wanted = name.replace("\\", "/").strip("/")
    plain = Path(path).as_posix()
    return bool(wanted) and any(plain.endswith(f"/{wanted}{extension}") for extension in _EMBEDDING_EXTENSIONS)
