"""Caches of other trainers with random damage: what is damaged is named, and the rest is imported."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheError, import_cache, open_cache

from ..dataset_cache.foreign.trainers import (
    ai_toolkit_latent,
    ai_toolkit_text,
    diffusion_pipe_items,
    draw,
    image,
    kohya_flux_text,
    kohya_npz,
    musubi_latent,
    musubi_text,
    onetrainer_images,
)
from ..support.mutations import mutate

COUNT = 3


def kohya(folder: Path) -> None:
    for i in range(COUNT):
        image(folder, f"{i}.png")
        kohya_npz(folder / f"{i}_0080x0064_flux.npz", draw(16, 4, 4, seed=i), "_4x4")
    kohya_flux_text(folder / "0_flux_te.npz")


def musubi(folder: Path) -> None:
    for i in range(COUNT):
        musubi_latent(folder, f"{i}", ("wan", "wan"), {"latents_1x4x4_float32": draw(16, 1, 4, 4, seed=i)})
    musubi_text(folder, "0", ("wan", "wan"), {"varlen_t5_float32": draw(3, 4096)})


def ai_toolkit(folder: Path) -> None:
    for i in range(COUNT):
        ai_toolkit_latent(image(folder, f"{i}.png"), draw(16, 4, 4, seed=i), "flux1")
    text = {"text_embed": draw(1, 2, 4096), "pooled_embed": draw(1, 768)}
    ai_toolkit_text(folder / "0.png", "a cat", "flux", text)


def diffusion_pipe(folder: Path) -> None:
    items = [
        {"latents": draw(4, 4, 4, seed=i), "image_spec": [None, f"{i}.png"], "mask": None, "caption": ["x"]}
        for i in range(COUNT)
    ]
    diffusion_pipe_items(folder / "cache" / "sdxl" / "bucket" / "latents", items)


def onetrainer(folder: Path) -> None:
    items = [{"latent_image": draw(4, 4, 4, seed=i), "original_resolution": (64, 80)} for i in range(COUNT)]
    onetrainer_images(folder, items, [f"{i}.png" for i in range(COUNT)])


KINDS: dict[str, Callable[[Path], None]] = {
    "kohya": kohya,
    "musubi": musubi,
    "ai-toolkit": ai_toolkit,
    "diffusion-pipe": diffusion_pipe,
    "onetrainer": onetrainer,
}


@pytest.fixture(params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "whole"
    folder.mkdir()
    KINDS[request.param](folder)
    return folder


def damage(whole: Path, folder: Path, seed: int) -> str:
    """Damage one file of a copy, whose trainer wrote it."""
    draw_from = random.Random(seed)
    shutil.copytree(whole, folder)
    files = sorted(path for path in folder.rglob("*.*") if path.suffix not in (".png", ".txt"))
    return mutate(draw_from.choice(files), draw_from)


def check(whole: Path, tmp_path: Path, seeds: range) -> int:
    """How many of the damages were found."""
    found = 0
    for seed in seeds:
        what = f"seed {seed}: {damage(whole, tmp_path / str(seed), seed)}"
        target = tmp_path / f"set-{seed}"
        try:
            report = import_cache(tmp_path / str(seed), target)
        except CacheError:
            found += 1
            continue
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        found += bool(report.skipped)
        with open_cache(target, check=True) as cache:
            assert 0 < len(cache) == report.samples <= COUNT, what
            assert all(isinstance(sample.realize().latent["samples"], torch.Tensor) for sample in cache), what
        shutil.rmtree(tmp_path / str(seed))
        shutil.rmtree(target)
    return found


def test_f9_damage_to_another_trainers_cache_is_named_or_harmless(whole: Path, tmp_path: Path):
    assert check(whole, tmp_path, range(25)) > 0


@pytest.mark.slow
def test_f9_a_hundred_damages_to_other_trainers_caches(whole: Path, tmp_path: Path):
    assert check(whole, tmp_path, range(1000, 1100)) > 0
