"""Filters, orders and counts over the images of a folder."""

from dataclasses import replace

import pytest

from streamcache.dataset_cache.curate import (
    IMAGE_ORDERS,
    CaptionText,
    FolderImage,
    FolderView,
    ImageFilter,
    bucket_of,
    count_buckets,
    count_caption_lengths,
    count_subfolders,
    count_tags,
    count_words,
    crop_of,
    select_images,
    sort_images,
)
from streamcache.dataset_cache.curate.selection import SubfolderCount
from streamcache.dataset_cache.sources import Transform
from streamcache.errors import CacheError

SMALL = Transform((64,), step=8)


def image(name: str, text: str = "", size=(64, 64), **facts) -> FolderImage:
    lines = tuple(filter(None, text.split("\n")))
    number = ord(name[0])
    values = {"bytes": 1000 - number, "modified": number % 7, **facts}
    return FolderImage(name, *size, caption=CaptionText(f"{name}.txt", text), lines=lines, **values)


IMAGES = [
    image("a.png", "1girl, Smile\n1girl, hat", (64, 32), mask="a-masklabel.png"),
    image("b.png", "a cat's nap", excluded=True),
    image("c.png", "", (32, 64), repeats=3),
    image("d.png", "smile", (0, 0), problem="the file is empty"),
]


def names(images) -> str:
    return "".join(image.name[0] for image in images)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (ImageFilter(), "abcd"),
        (ImageFilter(words="SMILE"), "ad"),
        (ImageFilter(words="smile hat"), "a"),
        (ImageFilter(words="c.png"), "c"),
        (ImageFilter(tag="smile"), "ad"),
        (ImageFilter(tag="cat"), ""),
        (ImageFilter(bucket="88×40"), "a"),
        (ImageFilter(captioned=False), "c"),
        (ImageFilter(excluded=True), "b"),
        (ImageFilter(excluded=False, captioned=True), "ad"),
        (ImageFilter(masked=True), "a"),
        (ImageFilter(problem=True), "d"),
        (ImageFilter(alike=True), "bc"),
        (ImageFilter(alike=False), "ad"),
    ],
)
def test_a_filter_lets_through_what_it_says(wanted, found):
    assert names(select_images(IMAGES, wanted, transform=SMALL, groups=[["b.png", "c.png"]])) == found


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ("name", "abcd"),
        ("size", "dacb"),
        ("bytes", "dcba"),
        ("caption length", "cdba"),
        ("date", "bcda"),
        ("bucket", "dcba"),
        ("repeats", "abdc"),
        ("similarity", "cabd"),
    ],
)
def test_orders_keep_equal_images_in_the_order_of_names(order, found):
    assert names(sort_images(IMAGES, order, transform=SMALL, groups=[["c.png"], ["a.png"]])) == found
    assert order in IMAGE_ORDERS


def test_an_order_can_be_reversed_and_an_unknown_one_is_refused():
    assert names(sort_images(IMAGES, "name", descending=True)) == "dcba"
    assert names(sort_images(IMAGES, "repeats", descending=True)) == "cabd"
    with pytest.raises(CacheError, match='did you mean "bytes"'):
        sort_images(IMAGES, "byte")


def test_tags_and_words_are_counted_once_per_image():
    assert count_tags(IMAGES) == {"Smile": 2, "1girl": 1, "a cat's nap": 1, "hat": 1}
    assert count_words(IMAGES) == {"Smile": 2, "1girl": 1, "a": 1, "cat's": 1, "hat": 1, "nap": 1}
    assert count_caption_lengths(IMAGES) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_the_crop_is_that_of_the_encoder():
    wide = image("wide.png", "", (200, 100))
    square = Transform(resolutions=(64,), min_aspect=1, max_aspect=1)
    assert crop_of(wide, square) == [0.25, 0.0, 0.75, 1.0]
    assert crop_of(wide, replace(square, crop="none")) == [0.0, 0.0, 1.0, 1.0]
    assert crop_of(wide, replace(square, crop="random")) is None, "it depends on the file's content"
    assert crop_of(replace(wide, width=0, height=0), square) is None


def test_buckets_are_those_of_the_transform():
    assert bucket_of(IMAGES[0], SMALL) == "88×40" and bucket_of(IMAGES[3], SMALL) == ""
    assert count_buckets(IMAGES, SMALL) == {"40×88": 1, "64×64": 1, "88×40": 1}


def test_a_run_sees_images_as_often_as_they_and_their_folders_repeat(tmp_path):
    images = [
        image("a.png"),
        image("b.png", repeats=4),
        image("c.png", excluded=True),
        image("5_x/d.png", repeats=2),
        image("5_x/e.png", problem="the file is empty"),
    ]
    assert count_subfolders(FolderView(tmp_path / "cats", images, [])) == [
        SubfolderCount("", 2, 1, 5),
        SubfolderCount("5_x", 1, 5, 10),
    ]
    assert count_subfolders(FolderView(tmp_path / "3_cats", images[:1], [])) == [SubfolderCount("", 1, 3, 3)]
