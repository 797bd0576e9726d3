"""Caches of musubi-tuner: latents of each architecture, captions from the metadata, text where it is certain."""

from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.foreign import import_foreign

from .trainers import draw, flux_scaled, image, musubi_latent, musubi_text

KONTEXT, WAN, ZIMAGE, QWEN = ("fk", "flux_kontext"), ("wan", "wan"), ("zi", "z_image"), ("qi", "qwen_image")


def imported(folder: Path, images: Path | None = None):
    report = import_foreign(folder, folder.parent / "set", images)
    return report, open_cache(folder.parent / "set")


def test_f9_wan_latents_text_and_captions(tmp_path: Path):
    image(tmp_path / "images", "one.png", caption="not this one")
    raw, t5 = draw(16, 2, 8, 8), draw(7, 4096, dtype=torch.bfloat16)
    mean, std = torch.tensor(_MEAN).view(-1, 1, 1, 1), torch.tensor(_STD).view(-1, 1, 1, 1)
    musubi_latent(tmp_path / "cache", "one", WAN, {"latents_2x8x8_float32": (raw - mean) / std})
    musubi_text(tmp_path / "cache", "one", WAN, {"varlen_t5_bfloat16": t5})
    report, cache = imported(tmp_path / "cache", tmp_path / "images")
    assert (report.samples, report.skipped, report.without) == (1, (), {})
    sample = cache[0].realize()
    assert torch.allclose(sample.latent["samples"], raw[None], atol=1e-5)
    states, options = sample.conditioning[0]
    assert states.shape == (1, 512, 4096) and torch.equal(states[0, :7], t5) and not states[0, 7:].any()
    assert options == {"pooled_output": None}
    assert (sample.source, sample.caption, sample.original_size) == ("one.png", "a dog", (80, 64))


def test_f9_kontexts_control_image_is_the_reference_of_its_conditioning(tmp_path: Path):
    raw, control = draw(16, 8, 8), draw(16, 8, 4, seed=1)
    tensors = {"latents_1x8x8_float32": flux_scaled(raw), "latents_control_1x8x4_float32": flux_scaled(control)}
    musubi_latent(tmp_path / "cache", "one", KONTEXT, tensors)
    text = {"t5_vec_float32": draw(16, 4096), "clip_l_pooler_float32": draw(768)}
    musubi_text(tmp_path / "cache", "one", KONTEXT, text)
    _, cache = imported(tmp_path / "cache")
    sample = cache[0].realize()
    (reference,) = sample.conditioning[0][1]["reference_latents"]
    assert torch.allclose(reference, control[None], atol=1e-6)
    assert torch.allclose(sample.latent["samples"], raw[None], atol=1e-6)


def test_f9_control_latents_that_would_be_lost_are_named(tmp_path: Path):
    control = {"latents_1x8x8_float32": draw(16, 1, 8, 8), "latents_control_0_1x8x8_float32": draw(16, 1, 8, 8)}
    musubi_latent(tmp_path / "cache", "edit", QWEN, control)
    plain = {"latents_1x8x8_float32": draw(16, 8, 8), "latents_control_1x8x8_float32": draw(16, 8, 8)}
    musubi_latent(tmp_path / "cache", "textless", KONTEXT, plain)
    musubi_latent(tmp_path / "cache", "good", QWEN, {"latents_1x8x8_float32": draw(16, 1, 8, 8)})
    report, cache = imported(tmp_path / "cache")
    assert [cache.source(i) for i in range(len(cache))] == ["good"]
    assert "latents_control_0" in report.skipped[0] and "belong to its conditioning" in report.skipped[1]


def test_f9_z_images_latents_are_unscaled_already_and_its_text_is_left_out(tmp_path: Path):
    raw = draw(16, 8, 8, dtype=torch.bfloat16)
    musubi_latent(tmp_path / "cache", "one", ZIMAGE, {"latents_1x8x8_bfloat16": raw})
    musubi_text(tmp_path / "cache", "one", ZIMAGE, {"varlen_llm_embed_bfloat16": draw(5, 2560)}, "a bird")
    report, cache = imported(tmp_path / "cache")
    assert torch.equal(cache[0].latent["samples"], raw[None]) and cache[0].caption == "a bird"
    assert report.without == {"text encoder outputs of zi are not imported": 1}


def test_f9_clips_of_a_video_are_samples_of_their_own(tmp_path: Path):
    for frames in ("00000-005", "00005-005"):
        musubi_latent(tmp_path / "cache", f"film_{frames}", WAN, {"latents_2x8x8_float32": draw(16, 2, 8, 8)})
    _, cache = imported(tmp_path / "cache")
    assert [cache.source(i) for i in range(2)] == ["film#00000-005", "film#00005-005"]


@pytest.mark.parametrize("arch", [("fp", "framepack"), ("ho1", "hidream_o1_image"), ("k5", "kandinsky5")])
def test_f9_architectures_whose_latents_are_not_known_are_named(tmp_path: Path, arch: tuple[str, str]):
    musubi_latent(tmp_path / "cache", "one", arch, {"latents_1x8x8_float32": draw(16, 8, 8)})
    musubi_latent(tmp_path / "cache", "good", QWEN, {"latents_1x8x8_float32": draw(16, 1, 8, 8)})
    report, _ = imported(tmp_path / "cache")
    assert report.samples == 1 and arch[1] in report.skipped[0]


_MEAN = (-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
         0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921)  # fmt: skip
_STD = (2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
        3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160)  # fmt: skip
