"""Test images that are kept with a run, so that a grid grows and no picture is made twice: `grid/` in its folder.

Each picture has a PNG for people, its latents for the node, which decodes them again bit for bit, and an entry in
`index.json`. Its key is a hash of everything that decides the picture.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from PIL import Image
from safetensors import SafetensorError

from ...dataset_cache import replace_file, take_lock
from ...errors import TrainError
from ..run import is_finite, open_run_file, read_from

GRID_FOLDER, INDEX = "grid", "index.json"
_KEY = re.compile("[0-9a-f]{16,64}")
_KINDS = {"prompt": str, "negative": str, "seed": int, "lora": str, "name": str, "strength": (int, float), "key": str}
MAX_LATENTS = 1 << 30  # bytes; the folder may come from elsewhere
PATIENCE = 20.0  # seconds to wait for another process that adds a picture


@dataclass(frozen=True)
class KeptPicture:
    """What the index says about a picture."""

    key: str
    file: str
    prompt: str
    negative: str
    seed: int
    lora: str  # file name; empty without a LoRA
    name: str  # of the run or LoRA
    step: int | None
    strength: float
    settings: Mapping[str, Any]
    base: str = ""  # tells models apart: a short hash of the one without a LoRA


@dataclass(frozen=True)
class KeptPictures:
    """The pictures in the folder of a run."""

    folder: Path

    def rows(self) -> dict[str, KeptPicture]:
        """The pictures by key, in the order in which they were made. Entries that are damaged are left out."""
        try:
            file = open_run_file(self.folder / INDEX)
            listed = [] if file is None else json.loads(read_from(file))["pictures"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            if isinstance(error, TrainError):
                raise
            return {}  # damaged: pictures are made again
        rows = [_row(entry) for entry in (listed if isinstance(listed, list) else [])]
        return {row.key: row for row in rows if row is not None}

    def latents(self, key: str) -> torch.Tensor | None:
        """The latents of a picture, None if it is not kept or damaged."""
        try:
            if open_run_file(self.folder / f"{key}.png") is None:
                return None
            file = open_run_file(self.folder / f"{key}.safetensors")
            if file is None or file.size > MAX_LATENTS:
                return None
            return safetensors.torch.load(read_from(file))["samples"]
        except (SafetensorError, KeyError):
            return None

    def keep(self, row: KeptPicture, latents: torch.Tensor, pixels: torch.Tensor) -> None:
        """Store a picture; its entry comes last."""
        try:
            self.folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise TrainError(f"{self.folder.parent}: the run was moved or deleted; start the grid again") from None
        data = io.BytesIO()
        to_image(pixels).save(data, "PNG")
        stored = safetensors.torch.save({"samples": latents.detach().to("cpu", copy=True).contiguous()})
        replace_file(self.folder / f"{row.key}.safetensors", stored)
        replace_file(self.folder / row.file, data.getvalue())
        try:
            lock = take_lock(self.folder / ".lock", PATIENCE)
        except TimeoutError:
            raise TrainError(f"{self.folder}: another process has been writing to it for long; try again") from None
        try:
            rows = {**self.rows(), row.key: row}
            body = {"format": 1, "pictures": [asdict(each) for each in rows.values()]}
            replace_file(self.folder / INDEX, json.dumps(body, indent=1).encode())
        finally:
            lock.release()


def to_image(pixels: torch.Tensor) -> Image.Image:
    """The first image of [B, H, W, 3] in 0…1, with the bytes that ComfyUI's Save Image writes."""
    scaled = (pixels[0].detach().float().cpu() * 255).clamp(0, 255)
    return Image.fromarray(scaled.to(torch.uint8).numpy())


def _row(entry: Any) -> KeptPicture | None:
    """An entry of the index; the file may come from elsewhere."""
    if not isinstance(entry, dict) or not isinstance(entry.get("settings"), dict):
        return None
    if any(not isinstance(entry.get(name), kind) for name, kind in _KINDS.items()):
        return None
    key, step = entry["key"], entry.get("step")
    if not _KEY.fullmatch(key) or not (step is None or isinstance(step, int)) or not is_finite(entry["strength"]):
        return None
    known = {field.name: entry.get(field.name) for field in fields(KeptPicture)}
    base = entry.get("base")
    return KeptPicture(**{**known, "file": f"{key}.png", "base": base if isinstance(base, str) else ""})
