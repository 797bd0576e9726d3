"""Look-alikes: hashes that survive scaling and compression, remembered, and groups found without comparing all."""

import dataclasses
import random
import sys
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.curate import SourceFolder, cache_hashes, folder_hashes, look_alikes
from streamcache.dataset_cache.curate.look_alikes import hash_image
from streamcache.errors import CacheError

from ...support.encoders import SMALL
from ...support.fixtures import settle


def scene(seed: int, size=(256, 192)) -> Image.Image:
    """Soft blobs, as a photo has."""
    draw = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(draw).resize(size, Image.Resampling.BICUBIC)


def distance(one: int, other: int) -> int:
    return bin(one ^ other).count("1")


def test_scaled_compressed_and_colored_copies_have_nearly_the_same_hash(tmp_path):
    original = scene(1)
    scene(1, (1024, 768)).save(tmp_path / "a.jpg", quality=40)
    for copy in (original.resize((100, 75)), original.convert("L"), Image.open(tmp_path / "a.jpg")):
        assert distance(hash_image(original), hash_image(copy)) <= 6
    assert all(distance(hash_image(original), hash_image(scene(seed))) > 10 for seed in range(2, 30))


def test_a_folder_has_groups_of_copies(tmp_path):
    for number in range(5):
        scene(number).save(tmp_path / f"{number}.png")
    scene(3, (900, 700)).save(tmp_path / "copy.jpg", quality=50)
    (tmp_path / "damaged.png").write_bytes((tmp_path / "0.png").read_bytes()[:200])
    hashes = folder_hashes(SourceFolder(tmp_path).read())
    assert set(hashes) == {"0.png", "1.png", "2.png", "3.png", "4.png", "copy.jpg"}
    assert look_alikes(hashes) == [["3.png", "copy.jpg"]]


def test_only_new_and_changed_images_are_read(tmp_path, monkeypatch):
    for number in range(3):
        scene(number).save(tmp_path / f"{number}.png")
    settle()
    module = sys.modules["streamcache.dataset_cache.curate.look_alikes"]
    before = folder_hashes(SourceFolder(tmp_path).read())
    read = []
    real = module.read_bytes
    monkeypatch.setattr(module, "read_bytes", lambda path: read.append(path) or real(path))
    assert folder_hashes(SourceFolder(tmp_path).read()) == before and read == []
    scene(9).save(tmp_path / "1.png")
    assert folder_hashes(SourceFolder(tmp_path).read())["1.png"] == hash_image(scene(9))
    assert read == [str(tmp_path / "1.png")]


def test_the_thumbnails_of_a_cache_have_hashes(tmp_path, run):
    (tmp_path / "set").mkdir()
    for number in range(3):
        scene(number % 2).save(tmp_path / "set" / f"{number}.png")
    run(settings=dataclasses.replace(SMALL, thumbnail=64))
    hashes = cache_hashes(open_cache(tmp_path / "cache"))
    assert look_alikes(hashes) == [[0, 2]] and cache_hashes(open_cache(tmp_path / "cache")) == hashes


def test_a_damaged_memory_is_begun_again(tmp_path, state_dir):
    scene(1).save(tmp_path / "a.png")
    (state_dir / "look_alikes.sqlite").write_bytes(b"not a database" * 100)
    for _ in range(2):
        assert folder_hashes(SourceFolder(tmp_path).read()) == {"a.png": hash_image(scene(1))}


def brute_force(hashes: dict[str, int], most: int) -> set[frozenset[str]]:
    groups = {name: {name} for name in hashes}
    for one in hashes:
        for other in hashes:
            if groups[one] is not groups[other] and distance(hashes[one], hashes[other]) <= most:
                groups[one] |= groups[other]
                for name in groups[other]:
                    groups[name] = groups[one]
    return {frozenset(group) for group in groups.values() if len(group) > 1}


@pytest.mark.parametrize("most", [0, 1, 6, 10])
def test_groups_are_those_of_comparing_all_with_all(most):
    draw = random.Random(most)
    hashes: dict[str, int] = {}
    for number in range(60):
        base = draw.getrandbits(64)
        for copy in range(4):
            flipped = draw.sample(range(64), draw.randint(0, 9))
            hashes[f"{number}-{copy}"] = base ^ sum(1 << bit for bit in flipped)
    assert {frozenset(group) for group in look_alikes(hashes, most)} == brute_force(hashes, most)


def test_chains_are_one_group_and_the_largest_comes_first():
    chain = {f"c{number}": (1 << 6 * number) - 1 for number in range(6)}
    assert look_alikes({**chain, "x": 1 << 63 | 0x5A5A << 40, "y": 1 << 63 | 0x5A5A << 40}) == [list(chain), ["x", "y"]]


def test_no_hashes_have_no_groups_and_a_wide_distance_is_refused():
    assert look_alikes({}) == [] and look_alikes({"a": 5}) == []
    with pytest.raises(CacheError, match="expected 0 to 10"):
        look_alikes({"a": 1}, 11)


def test_many_frames_of_one_scene_need_little_memory():
    draw = random.Random(5)
    values = {number: sum({1 << draw.randrange(64) for _ in range(3)}) for number in range(3000)}
    tracemalloc.start()
    (group,) = look_alikes(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(group) == 3000 and peak < 20 << 20
