"""Caches of ai-toolkit: the space from the metadata, the text only if it belongs to the caption as it is now."""

from pathlib import Path

import torch

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.foreign import import_foreign

from .trainers import ai_toolkit_latent, ai_toolkit_text, draw, flux_scaled, image


def sdxl_text() -> dict[str, torch.Tensor]:
    return {"text_embed": draw(1, 77, 2048), "pooled_embed": draw(1, 1280)}


def test_f9_latents_sizes_captions_and_text_of_flux(tmp_path: Path):
    file = image(tmp_path / "in" / "cats", "one.jpg", caption="red, cat")
    raw = draw(16, 8, 8)
    ai_toolkit_latent(file, flux_scaled(raw), "flux1", tensor=torch.zeros(3, 64, 64, dtype=torch.uint8))
    text = {"text_embed": draw(1, 16, 4096), "pooled_embed": draw(1, 768)}
    ai_toolkit_text(file, "red,  cat", "flux", text)  # as ai-toolkit joins what it split at commas
    report = import_foreign(tmp_path / "in", tmp_path / "set")
    assert (report.samples, report.skipped, report.without) == (1, (), {})
    sample = open_cache(tmp_path / "set")[0].realize()
    assert torch.allclose(sample.latent["samples"], raw[None], atol=1e-6)
    assert torch.equal(sample.conditioning[0][0], text["text_embed"])
    assert torch.equal(sample.conditioning[0][1]["pooled_output"], text["pooled_embed"])
    assert (sample.source, sample.caption) == ("cats/one.jpg", "red, cat")
    assert (sample.original_size, sample.crop) == ((80, 64), (3, 0, 64, 64))


def test_f9_text_of_an_older_caption_is_left_out(tmp_path: Path):
    file = image(tmp_path / "in", "one.png", caption="a new caption")
    ai_toolkit_latent(file, draw(4, 8, 8), "sdxl")
    ai_toolkit_text(file, "an old caption", "sdxl", sdxl_text())
    report = import_foreign(tmp_path / "in", tmp_path / "set")
    assert report.without == {"no text encoder output of its caption": 1}
    sample = open_cache(tmp_path / "set")[0]
    assert sample.conditioning is None and sample.caption == "a new caption"
    ai_toolkit_text(file, "a new caption", "sdxl", sdxl_text())
    assert import_foreign(tmp_path / "in", tmp_path / "set").without == {}


def test_f9_sdxl_latents_are_unscaled(tmp_path: Path):
    raw = draw(4, 8, 8)
    ai_toolkit_latent(image(tmp_path / "in", "one.png"), raw * 0.13025, "sdxl")
    import_foreign(tmp_path / "in", tmp_path / "set")
    assert torch.allclose(open_cache(tmp_path / "set")[0].latent["samples"], raw[None], atol=1e-5)


def test_f9_what_is_not_known_is_named(tmp_path: Path):
    folder = tmp_path / "in"
    ai_toolkit_latent(image(folder, "good.png"), draw(4, 8, 8), "sd1")
    ai_toolkit_latent(image(folder, "new.png"), draw(4, 8, 8), "model_of_tomorrow")
    ai_toolkit_latent(image(folder, "edit.png"), draw(16, 8, 8), "qwen_image_edit")
    ai_toolkit_latent(image(folder, "pixels.png"), torch.zeros(3, 8, 8, dtype=torch.uint8), "sd1")
    ai_toolkit_latent(image(folder, "film.png"), draw(16, 8, 8), "wan21", first_frame_latent=draw(16, 8, 8))
    report = import_foreign(folder, tmp_path / "set")
    assert report.samples == 1 and open_cache(tmp_path / "set").source(0) == "good.png"
    told = " ".join(report.skipped)
    assert len(report.skipped) == 4 and "'model_of_tomorrow'" in told and "'qwen_image_edit'" in told
    assert "pixels, not latents" in told and "first_frame_latent" in told
