"""The index: every row is found again, by number, key and hash; one that points nowhere is refused."""

import random
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from streamcache.dataset_cache import CacheError, CacheWriter, SampleFacts, open_cache
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.index import (
    ARRAY_TYPES,
    ENTRY,
    REF,
    SAMPLE,
    Index,
    open_index,
)
from streamcache.dataset_cache.index import joined as indexes

from ...support.datasets import forge
from ...support.samples import assert_holds, bits, sample, write_cache


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_cache(tmp_path / "set", 5)


def index_of(path: Path) -> Index:
    return open_index(path, read_manifest(path), check=True)


def test_it_is_a_safetensors_file_that_others_open(path):
    arrays = safetensors.numpy.load_file(next(path.glob("index-*")))
    assert set(arrays) >= set(ARRAY_TYPES)
    assert arrays["samples"].shape == (5, SAMPLE.itemsize) and arrays["entries"].shape == (10, ENTRY.itemsize)
    assert arrays["refs"].shape == (15, REF.itemsize) and arrays["captions"].dtype == np.uint32


def test_every_key_and_hash_is_found_and_no_other(tmp_path):
    with CacheWriter(tmp_path / "set") as w:
        for n in range(300):
            w.put(f"key {n}", bits((3,), seed=n), "thing")
    index = index_of(tmp_path / "set")
    for n in range(300):
        entry = index.find_entry(index.key_of(n))
        assert entry == n
        ref = index.find_ref(index.hash_of(n))
        assert index.hash_of(ref) == index.hash_of(n)
    draw = random.Random(1)
    assert all(index.find_entry(draw.randbytes(16)) is None for _ in range(300))
    for edge in (bytes(16), b"\xff" * 16):
        assert index.find_entry(edge) is None and index.find_ref(edge) is None


def test_texts_of_every_kind_are_kept(tmp_path):
    texts = ["", "a", "ä€𝄞", "\ud800", "\x00", "line\nbreak", "x" * 100_000, "a"]
    with CacheWriter(tmp_path / "set") as w:
        for text in texts:
            w.sample({}, SampleFacts(captions=[text, text], source=text, set=text))
    cache = open_cache(tmp_path / "set")
    assert [cache.source(i) for i in range(len(texts))] == texts
    assert [cache.captions(i) for i in range(len(texts))] == [[text, text] for text in texts]
    assert [one.set for one in cache] == texts
    assert sum(len(text) for text in set(texts)) < len(cache._index.arrays.strings) < 101_000, "each text once"


@pytest.mark.parametrize("cut", [0, 1, 8, 100, -1], ids=lambda n: f"to {n}")
def test_an_index_cut_short_is_an_error_that_names_it(path, cut):
    index = next(path.glob("index-*"))
    index.write_bytes(index.read_bytes()[:cut])
    with pytest.raises(CacheError, match=f"{index.name}.*bytes"):
        open_cache(path)


def test_a_flipped_bit_of_a_small_index_is_found_at_once(path):
    index = next(path.glob("index-*"))
    content = bytearray(index.read_bytes())
    content[-1] ^= 1
    index.write_bytes(content)
    with pytest.raises(CacheError, match=r"does not match its hash.*save it again"):
        open_cache(path)
    with pytest.raises(CacheError, match="does not match its hash"):
        CacheWriter(path)


def test_a_flipped_bit_of_a_large_index_is_found_when_checked_and_never_passed_on(path, monkeypatch):
    monkeypatch.setattr(indexes, "_CHECKED_INDEX_BYTES", 0)
    index = next(path.glob("index-*"))
    content = bytearray(index.read_bytes())
    content[-1] ^= 1
    index.write_bytes(content)
    assert len(open_cache(path)) == 5
    with pytest.raises(CacheError, match="does not match its hash"):
        open_cache(path, check=True)
    with pytest.raises(CacheError, match="does not match its hash"):
        CacheWriter(path, append=True)


# A hostile index, signed as a writer would


def test_an_honest_forgery_opens(path):
    forge(path, lambda arrays: None)
    assert_holds(open_cache(path, check=True), range(5))


HUGE = {"<u4": [5, 10**6, (1 << 32) - 1, (1 << 32) - 2], "<u8": [10**6, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cache(tmp_path_factory.mktemp("template") / "set", 3)


def columns() -> list[tuple[str, str | None]]:
    rows = [(name, column) for name in ("samples", "entries", "refs") for column in ARRAY_TYPES[name].names]
    plain = [(name, None) for name, dtype in ARRAY_TYPES.items() if dtype.names is None]
    return [pair for pair in rows + plain if pair[1] not in ("key", "hash")]


@pytest.mark.parametrize("array, column", columns(), ids=str)
def test_numbers_that_point_nowhere_are_harmless_or_raise_a_cache_error(template, tmp_path, array, column):
    dtype = ARRAY_TYPES[array][column].base if column else ARRAY_TYPES[array]
    for n, value in enumerate(HUGE.get(dtype.str, [0, 1, 127, 255])):
        path = tmp_path / str(n)
        shutil.copytree(template, path)

        def change(arrays: dict[str, np.ndarray], value: int = value) -> None:
            target = arrays[array] if column is None else arrays[array][column]
            target[..., -1 if target.ndim else 0] = value

        forge(path, change)
        use_everything(path)


def use_everything(path: Path) -> None:
    """All that reads and writes; only a CacheError is allowed."""
    for use in (
        lambda cache: [one.realize() for one in cache],
        lambda cache: [cache.read_batch([i]).conditionings for i in range(len(cache))],
        lambda cache: [cache.read_batch([i], variants={"latent": [0]}).latents for i in range(len(cache))],
        lambda cache: (cache.buckets(), [cache.variants(name) for name in cache.fields]),
        lambda cache: [(cache.source(i), cache.captions(i)) for i in range(len(cache))],
        lambda cache: cache.will_need(range(len(cache))),
        lambda cache: cache.has("key"),
    ):
        with suppress(CacheError):
            use(open_cache(path))
    try:
        with CacheWriter(path, append=True) as w:
            w.add(**sample(9))
            w.has("key")
        [one.realize() for one in open_cache(path)]
    except CacheError:
        pass


@pytest.mark.parametrize("name", [name for name in ARRAY_TYPES if name != "samples"])
def test_an_array_of_another_length_is_harmless_or_raises_a_cache_error(template, tmp_path, name):
    for n, resize in enumerate((lambda a: a[:0], lambda a: a[:-1], lambda a: np.concatenate([a, a]))):
        path = shutil.copytree(template, tmp_path / str(n))
        forge(path, lambda arrays, resize=resize: arrays.update({name: resize(arrays[name])}))
        use_everything(path)
