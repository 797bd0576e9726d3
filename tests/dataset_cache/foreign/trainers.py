"""Small caches in the layouts of other trainers, and how their latents are scaled there."""

import base64
import hashlib
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

FLUX_SCALE, FLUX_SHIFT = 0.3611, 0.1159


def image(folder: Path, name: str, size: tuple[int, int] = (80, 64), caption: str | None = "a cat") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(path)
    if caption is not None:
        path.with_suffix(".txt").write_text(caption, encoding="utf-8")
    return path


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def flux_scaled(raw: torch.Tensor) -> torch.Tensor:
    return FLUX_SCALE * (raw - FLUX_SHIFT)


# kohya's sd-scripts


def kohya_npz(path: Path, latent: torch.Tensor, size: str = "", **more: Any) -> Path:
    arrays = {
        f"latents{size}": latent.numpy(),
        f"original_size{size}": np.array([80, 64]),
        f"crop_ltrb{size}": np.array([3, 4, 67, 68]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays, **more)
    return path


def kohya_sdxl_text(path: Path, tokens: int = 77, seed: int = 0) -> dict[str, torch.Tensor]:
    parts = {
        "hidden_state1": draw(tokens, 768, seed=seed),
        "hidden_state2": draw(tokens, 1280, seed=seed + 1),
        "pool2": draw(1280, seed=seed + 2),
    }
    np.savez(path, **{name: tensor.numpy() for name, tensor in parts.items()})
    return parts


def kohya_flux_text(path: Path, masked: bool = False) -> dict[str, torch.Tensor]:
    parts = {"l_pooled": draw(768), "t5_out": draw(16, 4096, seed=1)}
    arrays = {name: tensor.numpy() for name, tensor in parts.items()}
    more = {"txt_ids": np.zeros((16, 3), np.float32), "t5_attn_mask": np.ones(16, np.int64)}
    np.savez(path, **arrays, **more, apply_t5_attn_mask=masked)
    return parts


# musubi-tuner


def musubi_latent(folder: Path, stem: str, arch: tuple[str, str], tensors: dict[str, torch.Tensor]) -> Path:
    """`arch`: its short name in the file's name, and the full one in the metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}_0080x0064_{arch[0]}.safetensors"
    save_file(tensors, path, {"architecture": arch[1], "width": "80", "height": "64", "format_version": "1.0.1"})
    return path


def musubi_text(
    folder: Path, stem: str, arch: tuple[str, str], tensors: dict[str, torch.Tensor], caption: str = "a dog"
) -> Path:
    path = folder / f"{stem}_{arch[0]}_te.safetensors"
    save_file(tensors, path, {"architecture": arch[1], "caption1": caption, "format_version": "1.0.1"})
    return path


# ai-toolkit


def _hash(facts: dict[str, Any]) -> str:
    digest = hashlib.md5(json.dumps(facts, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def ai_toolkit_latent(file: Path, latent: torch.Tensor, space: str, **more: torch.Tensor) -> Path:
    """The latent cache of an image."""
    facts = {
        "filename": file.name,
        "scale_to_width": 70,
        "scale_to_height": 64,
        "crop_x": 3,
        "crop_y": 0,
        "crop_width": 64,
        "crop_height": 64,
        "latent_space_version": space,
        "latent_version": 1,
    }
    path = file.parent / "_latent_cache" / f"{file.stem}_{_hash(facts)}.safetensors"
    path.parent.mkdir(exist_ok=True)
    metadata = {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()}
    save_file({"latent": latent, **more}, path, {**metadata, "format": "pt"})
    return path


def ai_toolkit_text(file: Path, caption: str, space: str, tensors: dict[str, torch.Tensor]) -> Path:
    name = _hash({"caption": caption, "text_embedding_space_version": space, "text_embedding_version": 1})
    path = file.parent / "_t_e_cache" / f"{file.stem}_{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path)
    return path


# diffusion-pipe


def diffusion_pipe_items(folder: Path, items: list[Any], per_shard: int = 2) -> Path:
    """One folder of items: shards of torch.save files, and a database of where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(folder / "metadata.db")
    database.execute("CREATE TABLE fingerprint(value)")
    database.execute("INSERT INTO fingerprint VALUES('0123')")
    database.execute("CREATE TABLE items(shard, shard_index)")
    for shard, start in enumerate(range(0, len(items), per_shard)):
        database.execute(f"CREATE TABLE shard_{shard}(offset, size)")
        with open(folder / f"shard_{shard}.bin", "wb") as file:
            for index, item in enumerate(items[start : start + per_shard]):
                data = item if isinstance(item, bytes) else saved(item)
                database.execute(f"INSERT INTO shard_{shard} VALUES(?, ?)", (file.tell(), len(data)))
                database.execute("INSERT INTO items VALUES(?, ?)", (shard, index))
                file.write(data)
    database.commit()
    database.close()
    return folder


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


# OneTrainer


def onetrainer_images(folder: Path, items: list[dict[str, Any]], paths: list[str], variation: int = 0) -> Path:
    place = folder / "image" / ("0123456789abcdef" * 4) / f"variation-{variation}"
    place.mkdir(parents=True)
    for number, item in enumerate(items):
        torch.save(item, place / f"{number}.pt")
    torch.save([{"crop_resolution": (64, 72), "image_path": path} for path in paths], place / "aggregate.pt")
    return place
