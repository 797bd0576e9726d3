"""Buckets and placements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcache.dataset_cache.sources.transforms import Transform, bucket_size, bucket_sizes, place_image
from streamcache.errors import CacheError

SIDES = st.integers(16, 6000)


def test_a_square_image_gets_the_square_bucket():
    assert bucket_size(700, 700, 1024, Transform()) == (1024, 1024)


def test_three_to_two_gets_the_sdxl_bucket():
    assert bucket_size(3000, 2000, 1024, Transform()) == (1216, 832)
    assert bucket_size(2000, 3000, 1024, Transform()) == (832, 1216)


@given(SIDES, SIDES, st.sampled_from([256, 500, 512, 768, 1024]), st.sampled_from([8, 16, 32, 64]))
def test_a_bucket_keeps_area_step_and_aspect(width, height, side, step):
    transform = Transform((side,), step=step)
    across, down = bucket_size(width, height, side, transform)
    assert across % step == down % step == 0
    assert across * down <= side * side
    assert 0.5 * 0.74 <= across / down <= 2 / 0.74


@given(SIDES, SIDES)
def test_portrait_and_landscape_mirror_each_other(width, height):
    assert (
        bucket_size(width, height, 512, Transform((512,))) == bucket_size(height, width, 512, Transform((512,)))[::-1]
    )


@given(SIDES, SIDES)
def test_without_upscaling_no_image_grows(width, height):
    transform = Transform((512,), upscale=False)
    size = bucket_size(width, height, 512, transform)
    if size is None:
        assert min(width, height) < 64
        return
    placement = place_image((width, height), size, transform, b"x")
    assert placement.resized[0] <= width and placement.resized[1] <= height


@given(SIDES, SIDES, st.sampled_from(["centre", "random", "none"]), st.binary(min_size=1, max_size=16))
def test_a_placement_stays_inside_the_image(width, height, crop, content):
    transform = Transform((512,), crop=crop)
    placement = place_image((width, height), bucket_size(width, height, 512, transform), transform, content)
    left, top, right, bottom = placement.box(width, height)
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    assert placement.left + placement.width <= placement.resized[0]
    assert placement.top + placement.height <= placement.resized[1]


def test_without_cropping_the_whole_image_is_used():
    transform = Transform((512,), crop="none")
    assert place_image((1000, 300), (704, 320), transform, b"x").box(1000, 300) == (0, 0, 1000, 300)


def test_a_random_crop_depends_on_seed_and_content_only():
    boxes = {
        place_image((4000, 1000), (512, 512), Transform((512,), crop="random", seed=seed), content).left
        for seed in (0, 1)
        for content in (b"a", b"b")
    }
    again = place_image((4000, 1000), (512, 512), Transform((512,), crop="random", seed=1), b"b").left
    assert len(boxes) == 4 and again in boxes


def test_several_resolutions_give_several_sizes_once_each():
    assert bucket_sizes(900, 900, Transform((512, 768))) == [(512, 512), (768, 768)]
    assert bucket_sizes(300, 300, Transform((512, 768), upscale=False)) == [(256, 256)]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"resolutions": ()}, "resolution"),
        ({"resolutions": (32,)}, "at least the step"),
        ({"resolutions": (512, 512)}, "each resolution once"),
        ({"step": 10}, "step"),
        ({"crop": "left"}, "centre, random, none"),
        ({"min_aspect": 0}, "min_aspect = 0.0: expected a finite number above 0, at most 1"),
        ({"max_aspect": float("inf")}, "max_aspect = inf: expected a finite number of at least 1"),
    ],
)
def test_invalid_settings_are_named(wrong, word):
    with pytest.raises(CacheError, match=word):
        Transform(**wrong)
