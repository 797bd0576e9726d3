"""Tags of captions, counted as kohya's scripts count them."""

import pytest

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train.data import tags
from streamcache.lora_train.data.tags import TagCounts, count_tags, split_tags

from ...support.small_parts import latent_of, words_of


def make_set(path, *samples: tuple[str, str]):
    with CacheWriter(path) as writer:
        for number, (name, caption) in enumerate(samples):
            writer.add(latent_of(number, (8, 8)), words_of(number), caption, set=name)
        for name in {name for name, _ in samples}:
            writer.describe_set(name, {"prior": name == "class"})
    return open_cache(path)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("1girl, red hair,  smile", ["1girl", "red hair", "smile"]),
        ("zxq cat", ["zxq cat"]),
        ("", []),
        (" , ,", []),
        ("A cat sits on a wall.", []),
        ("a cat that looks at the evening sun, on a wall", []),
    ],
)
def test_i4_tags_are_told_from_sentences(caption, expected) -> None:
    assert split_tags(caption) == expected


def test_i4_tags_are_counted_by_set_once_per_sample_without_prior_samples(tmp_path) -> None:
    samples = ("a", "cat, wall"), ("a", "cat, cat"), ("b", "cat, sun"), ("class", "dog, grass"), ("b", "")
    found = count_tags(make_set(tmp_path / "set", *samples))
    assert found == TagCounts({"a": {"cat": 2, "wall": 1}, "b": {"cat": 1, "sun": 1}}, captions=3)
    assert list(found.tags["a"]) == ["cat", "wall"]  # the most frequent first


def test_i4_a_sentence_counts_if_several_samples_have_it(tmp_path) -> None:
    said = "A photo of zxq on a wall."
    found = count_tags(make_set(tmp_path / "set", ("a", said), ("a", said), ("a", "Another one, said once only.")))
    assert found == TagCounts({"a": {said: 2}}, captions=3)


def test_i4_only_the_most_frequent_tags_are_stored(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tags, "MOST", 2)
    found = count_tags(make_set(tmp_path / "set", ("a", "x, y, z"), ("a", "z, y")))
    assert found.tags == {"a": {"y": 2, "z": 2}}
