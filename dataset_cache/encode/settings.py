"""The settings of encoding: how a plan is encoded."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar

from ..setting import check_settings, declare
from ..sources import Transform

BACKGROUNDS = {"white": (255, 255, 255), "grey": (128, 128, 128), "black": (0, 0, 0)}


@dataclass(frozen=True)
class Settings:
    """How a plan is encoded. Only transform, thumbnail and background decide the content of entries."""

    transform: Transform = field(default_factory=Transform)
    batch_size: int = declare(
        4, "Images per VAE call; halved automatically when memory runs out", "run", low=1, shown=(1, 256)
    )
    text_batch_size: int = declare(32, "Captions per text encoder call", "run", low=1)
    thumbnail: int = declare(
        128, "Longer side of the stored thumbnails, in pixels (0 = none)", "run", low=0, shown=(0, 512), step=16
    )
    background: tuple[int, int, int] = BACKGROUNDS["white"]  # behind transparent images
    threads: int = declare(0, "Threads that decode images (0 = automatic)", "run", low=0)
    trust: bool = declare(False, "Assume that files encoded before are unchanged, without checking them", "run")
    check: bool = declare(False, "Verify checksums of the cache first, and encode damaged entries again", "run")

    MAX_AUTOMATIC: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def decoders(self) -> int:
        """Threads that decode: two more than there are processors unless set."""
        return self.threads or min(self.MAX_AUTOMATIC, (os.cpu_count() or 1) + 2)
