"""Datasets for different models do not become one cache; what cannot be compared is warned about."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.upkeep import merge
from streamcache.dataset_cache.upkeep.gather import Part, gather


def made_for(
    path: Path,
    channels: int = 4,
    width: int = 16,
    pooled: int | None = 8,
    axes: int = 2,
    digests: Mapping[str, str] = MappingProxyType({}),
    **names: str,
) -> Path:
    """A cache of one sample, as encoding leaves it; `names` are the names of its encoders."""
    known = {part: f"digest of {name}" for part, name in names.items()}
    run = {"encoders": {**known, **digests}, "encoder_names": names}
    with CacheWriter(path, provenance={"encode": run, "samples": str(path)} if names else {}) as writer:
        samples = torch.randn(1, channels, *[4] * axes)
        extras = {"pooled_output": torch.randn(1, pooled) if pooled else None}
        writer.add({"samples": samples}, [[torch.randn(1, 3, width), extras]])
    return path


SDXL = {"channels": 4, "width": 2048, "pooled": 1280, "image": "sdxl_vae", "text": "clip_l + clip_g"}


@pytest.mark.parametrize(
    "other, match",
    [
        ({**SDXL, "channels": 16, "image": "ae"}, r"4 channels × 2 axes \(sdxl_vae\) and 16 channels × 2 axes \(ae\)"),
        ({**SDXL, "axes": 3}, "4 channels × 2 axes .* 4 channels × 3 axes"),
        ({**SDXL, "width": 768, "text": "clip_l"}, r"conditioning is 2048 \(clip_l \+ clip_g\) and 768 \(clip_l\)"),
        ({**SDXL, "pooled": 768}, "pooled output is 1280 .* and 768"),
        # As Flux and Chroma: one VAE, one width, and only one of them has a pooled output.
        ({**SDXL, "pooled": None}, "pooled output is 1280 .* and missing"),
        ({"channels": 16, "width": 2048, "pooled": 1280}, r"4 channels × 2 axes \(sdxl_vae\) and 16 channels"),
    ],
)
def test_datasets_for_different_models_are_refused_with_both_names(tmp_path: Path, other: dict, match: str):
    one, two = made_for(tmp_path / "one", **SDXL), made_for(tmp_path / "two", **other)
    with pytest.raises(CacheError, match=f"one and two do not fit together: .*{match}"):
        merge([one, two], tmp_path / "all")
    with pytest.raises(CacheError, match="one and two do not fit together"):
        gather([Part(open_cache(one)), Part(open_cache(two))], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_datasets_for_one_model_are_merged_without_a_warning(tmp_path: Path):
    caches = [made_for(tmp_path / name, **SDXL) for name in ("one", "two")]
    assert merge(caches, tmp_path / "all").warnings == ()


def test_datasets_without_a_pooled_output_and_without_captions_are_merged(tmp_path: Path):
    caches = [made_for(tmp_path / name, **{**SDXL, "pooled": None}) for name in ("one", "two")]
    with CacheWriter(tmp_path / "three") as writer:
        writer.add({"samples": torch.randn(1, 4, 4, 4)})
    assert merge([*caches, tmp_path / "three"], tmp_path / "all").samples == 3


def test_what_cannot_be_compared_is_warned_about(tmp_path: Path):
    unknown = {name: SDXL[name] for name in ("channels", "width", "pooled")}
    one, two = made_for(tmp_path / "one", **SDXL), made_for(tmp_path / "two", **unknown)
    (warning,) = merge([one, two], tmp_path / "all").warnings
    assert "two: only shapes were compared" in warning
    three = made_for(tmp_path / "three", **{**SDXL, "text": "clips_fp8"})
    (warning,) = merge([one, three], tmp_path / "both").warnings
    assert "captions come from different encoders: clip_l + clip_g (one), clips_fp8 (three)" in warning


def test_other_names_or_hashes_of_a_model_are_only_warned_about(tmp_path: Path):
    """The VAE in a checkpoint has another name than its own file, and many VAEs have one name."""
    one, baked = made_for(tmp_path / "one", **SDXL), made_for(tmp_path / "two", **{**SDXL, "image": "sd_xl_base"})
    (warning,) = merge([one, baked], tmp_path / "all").warnings
    assert "different VAEs: sdxl_vae (one), sd_xl_base (two)" in warning
    named = {**SDXL, "image": "diffusion_pytorch_model"}
    alike = [made_for(tmp_path / n, digests={"image": d}, **named) for n, d in (("three", "123"), ("four", "456"))]
    (warning,) = merge(alike, tmp_path / "both").warnings
    assert "diffusion_pytorch_model 123 (three), diffusion_pytorch_model 456 (four)" in warning


def test_many_datasets_get_one_warning_per_doubt(tmp_path: Path):
    unknown = [made_for(tmp_path / f"unknown {n}") for n in range(6)]
    others = [made_for(tmp_path / f"vae {n}", image=f"vae {n}", text=f"text {n}") for n in range(6)]
    report = merge([*unknown, *others], tmp_path / "all")
    assert len(report.warnings) == 3 and all(len(text) < 300 for text in report.warnings)


def test_the_models_of_a_merged_cache_are_still_known(tmp_path: Path):
    one, two = made_for(tmp_path / "one", **SDXL), made_for(tmp_path / "two", **SDXL)
    merge([one, two], tmp_path / "merged")
    gather([Part(open_cache(one)), Part(open_cache(two))], tmp_path / "gathered")
    other = made_for(tmp_path / "other", **{**SDXL, "image": "other_vae"})
    for known in ("merged", "gathered"):
        (warning,) = merge([tmp_path / known, other], tmp_path / f"{known} and other").warnings
        assert f"sdxl_vae ({known}), other_vae (other)" in warning


def test_gathering_passes_on_what_to_know_about_the_datasets(tmp_path: Path):
    one, two = made_for(tmp_path / "one", **SDXL), made_for(tmp_path / "two", **{**SDXL, "image": "other_vae"})
    warnings: list[str] = []
    gather([Part(open_cache(one)), Part(open_cache(two))], tmp_path / "all", warn=warnings.append)
    assert warnings == list(merge([one, two], tmp_path / "merged").warnings) != []
