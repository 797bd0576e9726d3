"""One encoder at work: batches, retries after running out of memory, and bad items."""

from dataclasses import replace

import pytest
import torch

from streamcache.dataset_cache import CacheError, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.encoders import Failure, Phase
from streamcache.dataset_cache.encode.settings import Settings

from ...support.encoders import SMALL, CountingImages, CountingTexts


def excluded(report) -> dict[str, str]:
    return {e.source: e.reason for e in report.excluded}


def test_a20_one_poisonous_caption_fails_alone(plan, tmp_path, picture, texts):
    for n in range(10):
        picture(f"set/{n}.png", seed=n, caption="poison" if n == 3 else f"caption {n}")
    (tmp_path / "set" / "5.txt").write_text("caption 5\npoison here too")
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 9
    assert excluded(report) == {"set/3.png": "its caption: the encoder failed: this caption cannot be tokenized"}
    cache = open_cache(tmp_path / "cache")
    assert {s.source: s.captions for s in cache}["set/5.png"] == ("caption 5",)


def test_a20_captions_are_encoded_in_batches(plan, tmp_path, picture, texts):
    for n in range(20):
        picture(f"set/{n}.png", seed=n, caption=f"caption {n:02}")
    encode(plan(), tmp_path / "cache")
    assert texts.batches == [8, 8, 5]


def test_a20_captions_of_one_length_are_next_to_each_other(plan, tmp_path, picture, texts):
    captions = ["a b c d", "abc", "a b c", "abcdef", "a b", "abcde", "ab", "abcd"]
    for n, caption in enumerate(captions):
        picture(f"set/{n}.png", seed=n, caption=caption)
    texts.length = lambda caption: [len(caption.split())]
    encode(plan(settings=replace(SMALL, text_batch_size=2)), tmp_path / "cache")
    lengths = [texts.length(caption) for caption in texts.items]
    assert lengths == sorted(lengths) and len(lengths) == 9
    cache = open_cache(tmp_path / "cache")
    assert [sample.caption for sample in cache] == captions
    assert all(torch.equal(s.conditioning[0][0], texts.make(s.caption)[0][0]) for s in cache)


def test_a20_a_caption_that_cannot_be_measured_fails_alone(plan, tmp_path, picture, texts):
    def length(caption):
        if "poison" in caption:
            raise ValueError("this caption cannot be tokenized")
        return [len(caption)]

    texts.length = length
    for n in range(4):
        picture(f"set/{n}.png", seed=n, caption="poison" if n == 3 else f"caption {n}")
    assert list(excluded(encode(plan(), tmp_path / "cache"))) == ["set/3.png"]


def test_an_encoder_that_always_fails_stops_the_run(plan, tmp_path, picture, images):
    for n in range(12):
        picture(f"set/{n}.png", seed=n)

    def broken(item):
        raise RuntimeError("wrong weights")

    images.make = broken
    with pytest.raises(CacheError, match="failed on each of the first 8 items: wrong weights"):
        encode(plan(), tmp_path / "cache")


OUT_OF_MEMORY = [
    MemoryError(),
    getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)("CUDA out of memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_out_of_memory_halves_the_batch_and_continues(error, plan, tmp_path, picture, images):
    for n in range(20):
        picture(f"set/{n}.png", seed=n)
    real = images.encode

    def greedy(items):
        if len(items) > 2:
            raise error
        return real(items)

    images.encode = greedy
    report = encode(plan(settings=Settings(SMALL.transform, batch_size=8, thumbnail=0)), tmp_path / "cache")
    assert report.samples == 20 and images.batches == [2] * 10


def test_out_of_memory_for_a_single_item_is_raised(images):
    def hungry(items):
        raise MemoryError("no room")

    images.encode = hungry
    with Phase(images, 4) as phase, pytest.raises(MemoryError, match="no room"):
        list(phase.encode([torch.zeros(8, 8, 3)] * 4))


def test_a_wrong_number_of_results_is_an_error(texts):
    texts.encode = lambda items: []
    with Phase(texts, 4) as phase, pytest.raises(CacheError, match="0 results for 2 items"):
        list(phase.encode(["a", "b"]))


def test_failures_keep_the_positions_of_their_items(texts):
    with Phase(texts, 3) as phase:
        made = [value for batch in phase.encode(["a", "poison", "c", "d"]) for value in batch]
    assert [isinstance(value, Failure) for value in made] == [False, True, False, False]


def test_counting_encoders_fulfil_the_protocol():
    from streamcache.dataset_cache.encode.encoders import Encoder, ImageEncoder

    assert isinstance(CountingTexts(), Encoder) and isinstance(CountingImages(), ImageEncoder)
