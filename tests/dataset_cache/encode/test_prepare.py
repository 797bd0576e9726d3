"""Files that change or vanish between the scan and their decoding."""

import pytest
import torch

from streamcache.dataset_cache import CacheError, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.masks import Masks
from streamcache.dataset_cache.sources.transforms import Transform

from ...support.fixtures import settle


def excluded(report) -> dict[str, str]:
    return {e.source: e.reason for e in report.excluded}


def test_a_file_that_vanishes_during_the_run_is_excluded(plan, tmp_path, picture, images):
    for n in range(4):
        picture(f"set/{n}.png", seed=n)
    made = plan()
    len(made)
    (tmp_path / "set" / "2.png").unlink()
    report = encode(made, tmp_path / "cache")
    assert report.samples == 3 and "cannot be read" in excluded(report)["set/2.png"]


def test_a_file_that_changes_during_the_run_is_stored_as_it_was_decoded(plan, tmp_path, picture, images):
    for n in range(4):
        picture(f"set/{n}.png", seed=n)
    encode(plan(), tmp_path / "cache")
    settle()
    picture("set/3.png", seed=50)
    made = plan()
    made.report(tmp_path / "cache")  # scanned and hashed
    picture("set/3.png", seed=60, size=(96, 64))
    settle()
    report = encode(made, tmp_path / "cache")
    assert report.samples == 4
    sample = open_cache(tmp_path / "cache")[3].realize()
    fresh = plan()[3].realize()
    assert torch.equal(sample.latent["samples"], fresh.latent["samples"]) and sample.original_size == (96, 64)
    images.reset()
    assert encode(plan(), tmp_path / "cache").samples == 4 and images.count == 0


def test_a_mask_that_changes_during_the_run_excludes_its_image_this_time(plan, tmp_path, picture):
    for n in range(2):
        picture(f"set/{n}.png", seed=n)
        picture(f"set/{n}-masklabel.png", seed=10 + n)
    settle()
    made = plan(masks=Masks("file"))
    made.report(tmp_path / "cache")
    picture("set/1-masklabel.png", seed=99)
    report = encode(made, tmp_path / "cache")
    assert report.samples == 1 and "changed during the run" in excluded(report)["set/1.png"]
    assert encode(plan(masks=Masks("file")), tmp_path / "cache").samples == 2


def test_sizes_and_crops_are_kept(run, tmp_path, picture):
    picture("set/a.png", size=(200, 64))
    run("set", settings=Settings(Transform((64,), step=8, max_aspect=1), thumbnail=0))
    sample = open_cache(tmp_path / "cache")[0]
    assert sample.original_size == (200, 64) and sample.crop == (68, 0, 64, 64)


def test_a_step_that_does_not_fit_the_encoder_is_refused(run, picture, images):
    picture("set/a.png")
    images.downscale = 16
    with pytest.raises(CacheError, match="use a multiple of 16"):
        run("set")


def test_an_encoder_with_a_wrong_downscale_factor_is_refused(run, picture, images):
    picture("set/a.png")
    images.make = lambda item: {"samples": torch.zeros(1, 4, 3, 3)}
    with pytest.raises(CacheError, match="for its downscale factor of 8"):
        run("set")
