"""Images and texts in memory as a source."""

import numpy as np
import pytest
import torch
from PIL import Image

from streamcache.dataset_cache import CacheError, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.sources.list_source import ListSource


def test_lists_of_images_and_texts_are_a_source_too(plan, tmp_path, picture, images, texts):
    path = picture("set/a.png", size=(64, 64), caption="from a file")
    pixels = torch.from_numpy(np.asarray(Image.open(path)).copy()).float()[None] / 255
    grey, glass = torch.rand(64, 64, 1), torch.rand(1, 64, 64, 4)
    report = encode(plan(ListSource([pixels, grey, glass], ["one", "two", "one"])), tmp_path / "cache")
    assert report.samples == 3 and images.count == 3 and sorted(texts.items) == ["", "one", "two"]
    listed = open_cache(tmp_path / "cache")[0].realize().latent["samples"]
    encode(plan(), tmp_path / "other")
    assert torch.equal(listed, open_cache(tmp_path / "other")[0].realize().latent["samples"])
    images.reset()
    again = encode(plan(ListSource([pixels, grey, glass], ["one", "two", "one"])), tmp_path / "cache")
    assert again.unchanged and images.loads == 0


@pytest.mark.parametrize(
    ("images_given", "texts_given", "word"),
    [
        ([torch.rand(8, 8, 3)] * 3, ["a", "b"], "2 texts for 3 images"),
        ([torch.rand(2, 8, 8, 3)], ["a"], "split a batch"),
        ([torch.full((8, 8, 3), float("nan"))], ["a"], "not finite"),
    ],
)
def test_invalid_lists_are_refused(plan, tmp_path, images_given, texts_given, word):
    with pytest.raises(CacheError, match=word):
        encode(plan(ListSource(images_given, texts_given)), tmp_path / "cache")


def test_a_text_with_half_a_character_excludes_only_its_image(plan, tmp_path):
    given = [torch.rand(64, 64, 3) for _ in range(3)]
    report = encode(plan(ListSource(given, ["one", "a \ud800 cat", "two"])), tmp_path / "cache")
    (excluded,) = report.excluded
    assert excluded.source == "image-00001" and "half a surrogate pair" in excluded.reason
    assert [sample.caption for sample in open_cache(tmp_path / "cache")] == ["one", "two"]
