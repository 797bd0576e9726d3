"""Caches of sd-scripts: latents, flips, masks, sizes, text and captions become samples in ComfyUI's terms."""

from pathlib import Path

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.foreign import import_foreign

from .trainers import draw, flux_scaled, image, kohya_flux_text, kohya_npz, kohya_sdxl_text


def test_f9_sdxl_latents_are_taken_as_they_are_with_size_crop_caption_and_text(tmp_path: Path):
    folder = tmp_path / "5_cats"
    image(folder, "one.png", caption="a cat\nanother line")
    latent = draw(4, 8, 8)
    kohya_npz(folder / "one_0080x0064_sdxl.npz", latent)
    text = kohya_sdxl_text(folder / "one_te_outputs.npz")
    report = import_foreign(tmp_path, tmp_path / "set")
    assert (report.samples, report.skipped, report.without, report.uncaptioned) == (1, (), {}, 0)
    (sample,) = open_cache(tmp_path / "set")
    sample = sample.realize()
    assert torch.equal(sample.latent["samples"], latent[None]) and list(sample.latent) == ["samples"]
    ((states, options),) = sample.conditioning
    assert torch.equal(states, torch.cat([text["hidden_state1"], text["hidden_state2"]], -1)[None])
    assert torch.equal(options["pooled_output"], text["pool2"][None]) and list(options) == ["pooled_output"]
    assert (sample.source, sample.caption, sample.repeats) == ("5_cats/one.png", "a cat", 5)
    assert (sample.original_size, sample.crop) == ((80, 64), (3, 4, 64, 64))


def test_f9_flux_latents_are_unscaled(tmp_path: Path):
    raw = draw(16, 8, 12)
    image(tmp_path / "in", "one.png")
    kohya_npz(tmp_path / "in" / "one_0080x0064_flux.npz", flux_scaled(raw), "_8x12")
    text = kohya_flux_text(tmp_path / "in" / "one_flux_te.npz")
    import_foreign(tmp_path / "in", tmp_path / "set")
    sample = open_cache(tmp_path / "set")[0].realize()
    assert torch.allclose(sample.latent["samples"], raw[None], atol=1e-6)
    assert torch.equal(sample.conditioning[0][0], text["t5_out"][None])
    assert torch.equal(sample.conditioning[0][1]["pooled_output"], text["l_pooled"][None])
    assert sample.crop == (3, 4, 96, 64)


def test_f9_text_that_means_something_else_is_left_out_with_the_reason(tmp_path: Path):
    for number, name in enumerate(("long", "masked", "none")):
        image(tmp_path, f"{name}.png", caption=name)
        kind, channels = ("flux", 16) if name == "masked" else ("sdxl", 4)
        kohya_npz(tmp_path / f"{name}_0080x0064_{kind}.npz", draw(channels, 8, 8, seed=number), "_8x8")
    kohya_sdxl_text(tmp_path / "long_te_outputs.npz", tokens=227)
    kohya_flux_text(tmp_path / "masked_flux_te.npz", masked=True)
    report = import_foreign(tmp_path, tmp_path / "set")
    assert report.samples == 3 and len(report.without) == 3
    reasons = " ".join(report.without)
    assert "(227, 768)" in reasons and "apply_t5_attn_mask" in reasons and "no text encoder outputs" in reasons
    cache = open_cache(tmp_path / "set")
    assert [sample.conditioning for sample in cache] == [None] * 3
    assert [sample.caption for sample in cache] == ["long", "masked", "none"]
    assert "without a conditioning" in str(report) and "(227, 768)" in str(report)


def test_f9_each_resolution_is_a_sample_and_flips_are_variants_with_their_masks(tmp_path: Path):
    image(tmp_path, "one.png")
    small, large, flipped = draw(16, 8, 8), draw(16, 16, 16, seed=1), draw(16, 16, 16, seed=2)
    mask = torch.zeros(128, 128)
    mask[:, :64] = 1
    more = {
        "latents_16x16": large.numpy(),
        "latents_flipped_16x16": flipped.numpy(),
        "alpha_mask_16x16": mask.numpy(),
        "original_size_16x16": np.array([80, 64]),
        "crop_ltrb_16x16": np.array([0, 0, 0, 0]),
    }
    kohya_npz(tmp_path / "one_0080x0064_sd3.npz", small, "_8x8", **more)
    import_foreign(tmp_path, tmp_path / "set")
    cache = open_cache(tmp_path / "set")
    assert len(cache) == 2 and cache.variants("latent").tolist() == [1, 2] and cache.variants("mask").tolist() == [0, 2]
    assert torch.equal(cache.sample(1, {"latent": 1}).latent["samples"], flipped[None])
    weights = [cache.sample(1, {"mask": i}).fields["mask"] for i in range(2)]
    assert weights[0].shape == (1, 16, 16) and weights[0][0, 0].tolist() == [1.0] * 8 + [0.0] * 8
    assert torch.equal(weights[1], weights[0].flip(-1))


def test_f9_what_is_not_known_or_damaged_is_named_and_the_rest_goes_on(tmp_path: Path):
    image(tmp_path, "good.png")
    kohya_npz(tmp_path / "good.npz", draw(4, 8, 8))  # the old name, without a size
    kohya_npz(tmp_path / "new_0080x0064_mystery.npz", draw(4, 8, 8))
    kohya_npz(tmp_path / "wrong_0080x0064_flux.npz", draw(4, 8, 8), "_8x8")
    (tmp_path / "cut_0080x0064_sdxl.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:300])
    np.savez(tmp_path / "empty_0080x0064_sdxl.npz", other=np.zeros(3))
    report = import_foreign(tmp_path, tmp_path / "set")
    assert report.samples == 1 and open_cache(tmp_path / "set")[0].source == "good.png"
    told = {text.split(":")[0]: text for text in report.skipped}
    assert set(told) == {f"{name}.npz" for name in (
        "new_0080x0064_mystery", "wrong_0080x0064_flux", "cut_0080x0064_sdxl", "empty_0080x0064_sdxl")}  # fmt: skip
    assert '"mystery"' in told["new_0080x0064_mystery.npz"] and "(4, 8, 8)" in told["wrong_0080x0064_flux.npz"]


def test_f9_a_latent_without_its_image_keeps_the_name_of_its_file(tmp_path: Path):
    kohya_npz(tmp_path / "gone_0080x0064_sdxl.npz", draw(4, 8, 8))
    report = import_foreign(tmp_path, tmp_path / "set")
    assert report.uncaptioned == 1 and "name the folder of the images" in str(report)
    assert open_cache(tmp_path / "set").source(0) == "gone_0080x0064_sdxl.npz"


@pytest.mark.parametrize(("kind", "shape"), [("hi", (64, 4, 4)), ("anima", (16, 1, 8, 8)), ("lumina", (16, 8, 8))])
def test_f9_other_families_have_the_shape_of_comfyuis_vae(tmp_path: Path, kind: str, shape: tuple[int, ...]):
    kohya_npz(tmp_path / f"one_0080x0064_{kind}.npz", draw(*shape), f"_{shape[-2]}x{shape[-1]}")
    import_foreign(tmp_path, tmp_path / "set")
    assert open_cache(tmp_path / "set")[0].latent["samples"].shape == (1, *shape)
