"""What a file is by its name, and which names are not taken."""

from pathlib import Path

import pytest

from streamcache.dataset_cache.intake.incoming import Incoming, is_debris, kind_of, refusal_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.png", "images"), ("sub/A.WEBP", "images"), ("a-masklabel.png", "masks"), ("masks/a.png", "masks"),
        ("sub/masks/x/a.png", "masks"), ("a.txt", "captions"), ("a.caption", "captions"), ("a.json", "captions"),
        ("metadata.jsonl", "metadata"), ("sub/metadata.jsonl", "metadata"), ("a.jsonl", ""), ("a.exe", ""), ("a", ""),
        (".txt", ""), (".png", ""), ("a.svg", ""), ("a.png.exe", ""),
    ],
)  # fmt: skip
def test_a_name_tells_what_a_file_is(name: str, kind: str):
    assert kind_of(name) == kind
    assert bool(refusal_of(name)) == (not kind)


def test_an_image_its_captions_and_its_mask_share_a_stem():
    names = ("a.b.png", "a.b.txt", "a.b-masklabel.png", "masks/a.b.png")
    assert {Incoming(Path(), name).stem for name in names} == {"a.b"}


@pytest.mark.parametrize("name", ["../a.png", "a/../../b.png", "/a.png", "a//b.png", "x:y.png", "nul.png", "a./b.png"])
def test_names_that_lead_elsewhere_are_refused(name: str):
    assert refusal_of(name).startswith("its name")


def test_files_of_systems_are_known():
    assert all(map(is_debris, ("__MACOSX/a.png", ".DS_Store", "x\\Thumbs.db", "a/.b/c.png")))
    assert not any(map(is_debris, ("a.png", "../a.png", "macosx/a.png")))
