"""A source of images in memory, such as ComfyUI's IMAGE lists, with their captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from PIL import Image

from ...errors import CacheError
from . import images
from .captions import TriggerCount, caption_variants, read_lines
from .headers import Header
from .images import Picture
from .source import Excluded, Findings, Folders, Item, Note, Source
from .source_files import Facts, FileRecord, Listing, content_hash


@dataclass(frozen=True, kw_only=True, eq=False)
class ListSource(Source):
    """Float tensors [H, W, C] or [1, H, W, C] in 0…1, with one text for all of them or one per image."""

    images: Sequence[torch.Tensor] = field(kw_only=False)
    texts: Sequence[str] = field(default=(), kw_only=False)
    names: Sequence[str] = ()

    local: ClassVar[frozenset[str]] = frozenset({"images", "texts", "names"})

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.images)
        for what, found, expected in (
            ("texts", len(self.texts), (0, 1, count)),
            ("names", len(self.names), (0, count)),
        ):
            if found not in expected:
                raise CacheError(f"set {self.set}: {found} {what} for {count} images; give one per image")

    def list(self, trust: bool = False, allow_missing: bool = False) -> ListedImages:
        items, problems, triggers = [], [], TriggerCount()
        for at, tensor in enumerate(self.images):
            name = self.names[at] if self.names else f"image-{at:05d}"
            text = self.texts[at if len(self.texts) > 1 else 0] if self.texts else ""
            try:
                lines = [self.prompt] if self.prompt is not None else read_lines("text", text)
            except ValueError as error:
                problems.append(Excluded(name, f"its text: {error}"))
                continue
            captions = caption_variants(lines, self.captions)
            triggers.add(lines, self.captions)
            items.append(Item(self, name, image_in_memory(tensor, name), captions, None, self.repeats))
        notes = [Note("", text) for text in triggers.notes(self.captions)]
        return ListedImages(items, problems=problems, notes=notes)


@dataclass(frozen=True)
class ListedImages:
    """All items, known without reading a file."""

    found: list[Item]
    listings: Sequence[Listing] = ()
    masks: Sequence[Listing] = ()
    problems: Sequence[Excluded] = ()
    notes: Sequence[Note] = ()

    @property
    def identity(self) -> object:
        return [[item.name, item.captions, item.image.content.hex()] for item in self.found]

    def items(self, files: Folders, masks: Folders) -> Findings:
        return Findings(list(self.found), notes=list(self.notes))


@dataclass(frozen=True, slots=True)
class MemoryImage:
    """An image in memory. Reading it gives itself: it cannot change."""

    pixels: torch.Tensor  # uint8 [H, W, 3 or 4]
    content: bytes
    width: int
    height: int
    alpha: bool

    def read(self) -> MemoryImage:
        return self

    def decode(self, background: tuple[int, int, int]) -> Picture:
        return images.flatten(Image.fromarray(self.pixels.numpy()), background)

    def probe(self) -> Header:
        return Header(self.width, self.height, self.alpha, "")

    def record(self, facts: Facts) -> FileRecord | None:
        return None


def image_in_memory(tensor: torch.Tensor, name: str) -> MemoryImage:
    """Take an image from ComfyUI: [H, W, C] or [1, H, W, C] with 1, 3 or 4 channels, in 0…1."""
    pixels = tensor.detach()
    if pixels.ndim == 4 and pixels.shape[0] == 1:
        pixels = pixels[0]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or 0 in pixels.shape:
        raise CacheError(
            f"{name}: has the shape {tuple(tensor.shape)}, expected one image [H, W, 3]; split a batch into images"
        )
    if pixels.dtype != torch.uint8:
        if not torch.isfinite(pixels).all():
            raise CacheError(f"{name}: contains values that are not finite")
        pixels = (pixels.float().clamp(0, 1) * 255).round().to(torch.uint8)
    pixels = pixels.cpu().expand(-1, -1, 3) if pixels.shape[2] == 1 else pixels.cpu()
    pixels = pixels.contiguous()
    content = content_hash(repr(tuple(pixels.shape)).encode() + pixels.numpy().tobytes())
    return MemoryImage(pixels, content, pixels.shape[1], pixels.shape[0], pixels.shape[2] == 4)
