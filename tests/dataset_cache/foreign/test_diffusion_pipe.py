"""Caches of diffusion-pipe: items of all shards, captions as variants, text by the image that it belongs to."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import CacheError, open_cache
from streamcache.dataset_cache.foreign import import_foreign
from streamcache.dataset_cache.foreign.diffusion_pipe import ItemCache

from .trainers import diffusion_pipe_items, draw, flux_scaled, image

BUCKET = "ar_frames_1.000_1/cache_1.000x512x512x1"


def item(path: str, latent: torch.Tensor, captions: list[str], **more: Any) -> dict[str, Any]:
    return {"latents": latent, "image_spec": [None, path], "mask": None, "caption": captions, **more}


def test_f9_flux_latents_with_a_conditioning_for_each_caption(tmp_path: Path):
    folder = tmp_path / "in"
    image(folder, "a.png")
    image(folder, "deep/b.png")
    raw = [draw(16, 8, 8, seed=i) for i in range(3)]
    mask = torch.ones(64, 64)
    bucket = folder / "cache" / "flux" / BUCKET
    specs = ["/home/someone/data/a.png", "C:\\data\\deep\\b.png", "/home/someone/data/gone.png"]
    captions = [["a one", "a two"], ["b"], ["gone"]]
    items = [item(s, flux_scaled(r), c) for s, r, c in zip(specs, raw, captions)]
    items[1]["mask"] = mask
    diffusion_pipe_items(bucket / "latents", items)
    flat = [(spec, text) for spec, texts in zip(specs, captions) for text in texts]
    t5 = [draw(16, 4096, seed=i) for i in range(len(flat))]
    clip = [draw(768, seed=i) for i in range(len(flat))]
    for number, key, parts in ((1, "clip_embed", clip), (2, "t5_embed", t5)):
        texts = [{key: part, "image_spec": [None, spec]} for part, (spec, _) in zip(parts, flat)]
        diffusion_pipe_items(bucket / f"text_embeddings_{number}", texts, per_shard=3)
    report = import_foreign(folder, tmp_path / "set")
    assert (report.samples, report.skipped, report.without) == (3, (), {})
    cache = open_cache(tmp_path / "set")
    assert [cache.source(i) for i in range(3)] == ["a.png", "deep/b.png", "gone.png"]
    assert [cache.captions(i) for i in range(3)] == captions
    assert cache[0].original_size == (80, 64) and cache[2].original_size == (0, 0)
    number = 0
    for i in range(3):
        assert torch.allclose(cache[i].realize().latent["samples"], raw[i][None], atol=1e-6)
        for variant in range(len(captions[i])):
            ((states, options),) = cache.sample(i, {"conditioning": variant}).realize().conditioning
            assert torch.equal(states[0], t5[number]) and torch.equal(options["pooled_output"][0], clip[number])
            number += 1
    assert cache[1].fields["mask"].shape == (1, 8, 8) and "mask" not in cache[0].fields


def test_f9_the_folder_of_a_model_can_be_imported_by_itself(tmp_path: Path):
    bucket = tmp_path / "data" / "cache" / "sdxl" / BUCKET
    raw = draw(4, 8, 8)
    diffusion_pipe_items(bucket / "latents", [item("a.png", raw * 0.13025, ["x"])])
    image(tmp_path / "data", "a.png")
    report = import_foreign(tmp_path / "data" / "cache" / "sdxl", tmp_path / "set", tmp_path / "data")
    cache = open_cache(tmp_path / "set")
    assert torch.allclose(cache[0].realize().latent["samples"], raw[None], atol=1e-5) and cache.source(0) == "a.png"
    assert report.without == {"text encoder outputs of sdxl are not imported": 1}


def test_f9_inputs_that_would_be_lost_and_unknown_models_are_named(tmp_path: Path):
    cache = tmp_path / "in" / "cache"
    edit = item("b.png", draw(16, 1, 8, 8), ["x"], control_latents=draw(16, 1, 8, 8))
    diffusion_pipe_items(cache / "qwen_image" / BUCKET / "latents", [item("a.png", draw(16, 1, 8, 8), ["x"]), edit])
    diffusion_pipe_items(cache / "ltx2" / BUCKET / "latents", [item("a.png", draw(16, 1, 8, 8), ["x"])])
    report = import_foreign(tmp_path / "in", tmp_path / "set")
    assert report.samples == 1 and len(report.skipped) == 2
    assert "'ltx2'" in report.skipped[0] and "control_latents" in report.skipped[1]


def test_f9_text_whose_parts_belong_to_different_images_is_left_out(tmp_path: Path):
    bucket = tmp_path / "in" / "cache" / "flux" / BUCKET
    specs = ["a.png", "b.png"]
    diffusion_pipe_items(bucket / "latents", [item(spec, draw(16, 8, 8), ["x"]) for spec in specs])
    clip = [{"clip_embed": draw(768), "image_spec": [None, spec]} for spec in specs]
    t5 = [{"t5_embed": draw(16, 4096), "image_spec": [None, spec]} for spec in reversed(specs)]
    diffusion_pipe_items(bucket / "text_embeddings_1", clip)
    diffusion_pipe_items(bucket / "text_embeddings_2", t5)
    report = import_foreign(tmp_path / "in", tmp_path / "set")
    assert report.samples == 2 and all("belongs to another image" in reason for reason in report.without)
    assert sum(report.without.values()) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE shard_0 SET offset = 999999999", "ends after the file"),
        ("UPDATE shard_0 SET offset = -5", "not valid"),
        ("UPDATE shard_0 SET size = 99999999999999", "not valid"),
        ("UPDATE items SET shard_index = 7", "not valid"),
    ],
)
def test_f9_a_database_that_lies_is_refused(tmp_path: Path, change: str, message: str):
    folder = diffusion_pipe_items(tmp_path / "latents", [item("a.png", draw(4, 8, 8), [])])
    alter(folder, change)
    with pytest.raises(CacheError, match=message):
        ItemCache(folder).item(0)


@pytest.mark.parametrize(
    "changes",
    [
        ["DROP TABLE items"],
        ["DROP TABLE shard_0"],
        ["DROP TABLE items", "CREATE VIEW items AS WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x FROM n) "
         "SELECT x AS shard, x AS shard_index FROM n"],
        ["DROP TABLE items", "CREATE TABLE items(shard, shard_index AS (length(zeroblob(1000000000))))"],
        ["UPDATE items SET shard = 'all'"],
        ["UPDATE items SET shard = 12345678901"],
    ],
)  # fmt: skip
def test_f9_a_database_that_computes_or_lacks_its_tables_is_refused(tmp_path: Path, changes: list[str]):
    folder = diffusion_pipe_items(tmp_path / "latents", [item("a.png", draw(4, 8, 8), [])])
    for change in changes:
        alter(folder, change)
    with pytest.raises(CacheError, match=r"metadata\.db"):
        ItemCache(folder)
    (folder / "metadata.db").write_bytes(b"no database")
    with pytest.raises(CacheError, match=r"metadata\.db"):
        ItemCache(folder)


def alter(folder: Path, change: str) -> None:
    database = sqlite3.connect(folder / "metadata.db")
    database.execute(change)
    database.commit()
    database.close()
