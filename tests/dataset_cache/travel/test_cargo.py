"""The check of a file while it arrives: the header first, then every blob, in pieces of any size."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, LocalStorage, read_manifest
from streamcache.dataset_cache.format.shard import blob_hash, header_hash, read_header
from streamcache.dataset_cache.travel import pull
from streamcache.dataset_cache.travel.cargo import Cargo, ShardCheck, cargo_of

from ...support.datasets import write_set


def fed(cargo: Cargo, data: bytes, seed: int = 0) -> str | None:
    check, draw, at = cargo.check(), random.Random(seed), 0
    while at < len(data):
        size = draw.choice((1, 3, 60, 1000, 1 << 20))
        check.feed(memoryview(data)[at : at + size])
        at += size
    return check.problem()


def gaps(file: Path) -> set[int]:
    """The bytes of a file that belong to no tensor."""
    if file.name.startswith("index"):
        return set()
    header, start = read_header(LocalStorage(file.parent).open(file.name))
    pads = (info["data_offsets"] for name, info in header.items() if name.startswith("~pad"))
    return {at for begin, end in pads for at in range(start + begin, start + end)}


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[Cargo, bytes]]:
    path = write_set(tmp_path / "set", range(7))
    return [(cargo, (path / cargo.name).read_bytes()) for cargo in cargo_of(read_manifest(path))]


@pytest.mark.parametrize("seed", range(5))
def test_every_file_of_a_generation_passes_in_pieces_of_any_size(files: list[tuple[Cargo, bytes]], seed: int):
    assert [fed(cargo, data, seed) for cargo, data in files] == [None] * len(files)
    assert sorted(len(data) for _, data in files) == sorted(cargo.bytes for cargo, _ in files)


def test_a_changed_byte_is_found_but_for_gaps_between_blobs(files: list[tuple[Cargo, bytes]], tmp_path: Path):
    for cargo, data in files:
        places = range(0, len(data), max(1, len(data) // 60))
        missed = [at for at in places if fed(cargo, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None]
        assert set(missed) <= gaps(tmp_path / "set" / cargo.name) and len(missed) < len(places)


@pytest.mark.parametrize("size", [0, 5, 8, 200, -1])
def test_a_file_that_ends_early_is_found(files: list[tuple[Cargo, bytes]], size: int):
    assert all(fed(cargo, data[:size]) for cargo, data in files)


def test_a_header_of_an_impossible_size_is_refused_before_it_is_kept(files: list[tuple[Cargo, bytes]]):
    shard, data = files[0]
    check = shard.check()
    check.feed(memoryview((1 << 62).to_bytes(8, "little") + data[8:]))
    assert "impossible size" in check.problem()


def forged(data: bytes) -> bytes:
    """A shard with another tensor, listed in its header under the hash of that tensor."""
    start = 8 + int.from_bytes(data[:8], "little")
    listed = {name: info for name, info in json.loads(data[8:start]).items() if not name.startswith(("~", "__"))}
    name, info = next(iter(listed.items()))
    begin, end = (start + at for at in info["data_offsets"])
    blob = bytes([data[begin] ^ 1]) + data[begin + 1 : end]
    hashed = blob_hash(memoryview(blob), info["dtype"], tuple(info["shape"])).hex()
    return data[:start].replace(name.encode(), hashed.encode()) + data[start:begin] + blob + data[end:]


def test_a_forged_header_is_refused_though_its_blobs_fit(tmp_path: Path):
    path = write_set(tmp_path / "set", range(3))
    shards = read_manifest(path).shards
    for shard in shards:
        file = path / "shards" / shard.file
        data = forged(file.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        honest = ShardCheck(replace(shard, hash=header_hash(data[:start])))
        honest.feed(memoryview(data))
        assert honest.problem() is None, "only the hash of the header is wrong"
        check = ShardCheck(shard)
        check.feed(memoryview(data))
        assert "its header does not match its hash" in (check.problem() or "")
        file.write_bytes(data)
    with pytest.raises(CacheError, match="its header does not match its hash"):
        pull(path, tmp_path / "copy")
    assert not (tmp_path / "copy/dataset.json").exists() and not list((tmp_path / "copy").glob("shards/*"))


def test_types_of_four_bits_and_empty_tensors_pass(tmp_path: Path):
    four = getattr(torch, "float4_e2m1fn_x2", None)
    with CacheWriter(tmp_path / "set") as writer:
        writer.add(latent=torch.zeros(0, 4), other=torch.ones(3), caption="a")
        for shape in ((), (1,), (3, 5)) if four else ():
            writer.add(latent=torch.full(shape, 7, dtype=torch.uint8).view(four) if shape else torch.zeros(1), other=0)
    path = tmp_path / "set"
    assert [fed(c, (path / c.name).read_bytes()) for c in cargo_of(read_manifest(path))] == [None, None]
