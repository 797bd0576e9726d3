"""Shards are safetensors files that any tool opens; one that lies is refused, whatever it lies about."""

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import shard
from streamcache.dataset_cache.format.files import OpenFile
from streamcache.dataset_cache.format.shard import ALIGNMENT, PAD, ShardWriter, blob_hash, read_header, seal
from streamcache.dataset_cache.format.storage import LocalStorage
from streamcache.dataset_cache.format.tensors import NAMES

from ...support.samples import EVERY_DTYPE, bits, raw, shard_files, write_cache

UNKNOWN_TO_SAFETENSORS = {"F8_E8M0", "F4", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}  # its Python side reads headers, not these


def write_file(path: Path, header: Any, data: bytes = b"", size: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)
    return path


def tensor(begin: Any, end: Any, shape: Any = None, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def read(path: Path) -> tuple[dict, int]:
    return read_header(OpenFile(path))


def write_shard(path: Path, tensors: list[torch.Tensor], header_bytes: int = 8192) -> list[shard.Blob]:
    writer = ShardWriter(LocalStorage(path.parent), path.name, header_bytes)
    for t in tensors:
        data, dtype, shape = memoryview(raw(t)), NAMES[t.dtype], tuple(t.shape)
        writer.append(blob_hash(data, dtype, shape), dtype, shape, data)
    writer.close()
    seal(LocalStorage(path.parent), path.name, writer.blobs, header_bytes, writer.end)
    return writer.blobs


def test_the_safetensors_library_opens_every_shard(tmp_path):
    write_cache(tmp_path / "set", 6)
    for file in shard_files(tmp_path / "set"):
        tensors = safetensors.torch.load_file(file)
        blobs = {name: value for name, value in tensors.items() if not name.startswith(PAD)}
        assert blobs
        for name, value in blobs.items():
            assert blob_hash(memoryview(raw(value)), NAMES[value.dtype], tuple(value.shape)).hex() == name


def test_a_shard_of_every_dtype_opens_with_the_safetensors_library(tmp_path):
    given = [bits((3, 4), dtype, n) for n, dtype in enumerate(EVERY_DTYPE)]
    blobs = write_shard(tmp_path / "all", given)
    with safetensors.safe_open(tmp_path / "all", "pt") as file:
        assert set(file.keys()) >= {blob.hash.hex() for blob in blobs}
        for blob, expected in zip(blobs, given, strict=True):
            if blob.dtype not in UNKNOWN_TO_SAFETENSORS:
                assert raw(file.get_tensor(blob.hash.hex())) == raw(expected)


@pytest.mark.parametrize(
    "shapes", [[()], [(0,)], [(0,), (3,)], [(3,), (0,), (4,)], [(64,), (64,)], [(1,)] * 9, []], ids=str
)
def test_odd_sizes_leave_no_hole_and_every_blob_aligned(tmp_path, shapes):
    given = [bits(shape, torch.uint8, n) for n, shape in enumerate(shapes)]
    blobs = write_shard(tmp_path / "odd", given)
    content = (tmp_path / "odd").read_bytes()
    assert all(blob.offset % ALIGNMENT == 0 for blob in blobs)
    assert [content[blob.offset : blob.offset + blob.nbytes] for blob in blobs] == [raw(t) for t in given]
    header, start = read(tmp_path / "odd")
    safetensors.torch.load(content)
    assert start % ALIGNMENT == 0 and len([name for name in header if not name.startswith(PAD)]) == len(
        set(map(raw, given))
    )


def test_a_header_never_outgrows_its_space(tmp_path, monkeypatch):
    monkeypatch.setattr(shard, "SHARD_BYTES", 1 << 30)
    writer = ShardWriter(LocalStorage(tmp_path), "full", 8192)
    n = 0
    while writer.has_room(1):
        shape = (*[1] * 63, 10**15, 0) if n % 2 else (1,)
        data = b"" if n % 2 else b"x"
        writer.append(n.to_bytes(16, "big"), "U8", shape[-64:], memoryview(data))
        n += 1
    writer.close()
    assert n > 2
    seal(LocalStorage(tmp_path), "full", writer.blobs, 8192, writer.end)
    assert len(read(tmp_path / "full")[0]) >= n


def test_an_interrupted_write_leaves_no_trace(tmp_path, monkeypatch):
    writer = ShardWriter(LocalStorage(tmp_path), "broken", 8192)
    writer.append(b"a" * 16, "U8", (70,), memoryview(b"a" * 70))
    with monkeypatch.context() as patch:

        def half(fd: int, data: memoryview) -> int:
            patch.undo()
            os.write(fd, data[: len(data) // 2])
            raise KeyboardInterrupt

        patch.setattr(os, "write", half)
        with pytest.raises(KeyboardInterrupt):
            writer.append(b"b" * 16, "U8", (100,), memoryview(b"b" * 100))
    blob = writer.append(b"c" * 16, "U8", (5,), memoryview(b"c" * 5))
    writer.close()
    seal(LocalStorage(tmp_path), "broken", writer.blobs, 8192, writer.end)
    assert (tmp_path / "broken").read_bytes()[blob.offset :] == b"ccccc"
    assert set(safetensors.torch.load_file(tmp_path / "broken")) >= {"61" * 16, "63" * 16}


LIES = {
    "empty": b"",
    "seven bytes": b"1234567",
    "no header": struct.pack("<Q", 0),
    "header longer than the file": struct.pack("<Q", 1000) + b"{}",
    "huge header": struct.pack("<Q", (1 << 64) - 1) + b"{}",
    "header of over 100 MB": struct.pack("<Q", 100_000_001) + b"{}",
    "text": b"this is not a safetensors file, far from it",
    "image": b"\x89PNG\r\n\x1a\n" + bytes(100),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_invalid_safetensors_file_is_refused(tmp_path, lie):
    path = tmp_path / "lie"
    path.write_bytes(LIES[lie])
    with pytest.raises(CacheError, match="^lie: "):
        read(path)


LYING_HEADERS = {
    "offset past the end": ({"a": tensor(0, 17)}, 16),
    "far past the end": ({"a": tensor(0, 1 << 62)}, 16),
    "overlap": ({"a": tensor(0, 10), "b": tensor(8, 16)}, 16),
    "twice the same bytes": ({"a": tensor(0, 16), "b": tensor(0, 16)}, 16),
    "hole": ({"a": tensor(0, 8), "b": tensor(9, 16)}, 16),
    "hole at the start": ({"a": tensor(8, 16)}, 16),
    "extra bytes at the end": ({"a": tensor(0, 8)}, 16),
    "nothing listed": ({}, 16),
    "negative size": ({"a": tensor(0, 16, [-16])}, 16),
    "two negative sizes": ({"a": tensor(0, 16, [-4, -4])}, 16),
    "negative offset": ({"a": tensor(-8, 8)}, 8),
    "backwards": ({"a": tensor(16, 0, [0])}, 16),
    "huge sizes": ({"a": tensor(0, 16, [1 << 62, 1 << 62, 1 << 62])}, 16),
    "size of thousands of digits": (b'{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,16]}}' % (b"9" * 5000), 16),
    "other size than the shape": ({"a": tensor(0, 16, [15])}, 16),
    "unknown type": ({"a": tensor(0, 16, [16], "U9")}, 16),
    "type is not a string": ({"a": tensor(0, 16, [16], ["U8"])}, 16),
    "shape is not a list": ({"a": tensor(0, 16, 16)}, 16),
    "size is a string": ({"a": tensor(0, 16, ["16"])}, 16),
    "size is a float": ({"a": tensor(0, 16, [16.0])}, 16),
    "size is a boolean": ({"a": tensor(0, 1, [True])}, 1),
    "offset is a float": ({"a": {"dtype": "U8", "shape": [16], "data_offsets": [0.0, 16.0]}}, 16),
    "offset is a string": ({"a": {"dtype": "U8", "shape": [16], "data_offsets": ["0", "16"]}}, 16),
    "offset is NaN": (b'{"a":{"dtype":"U8","shape":[16],"data_offsets":[NaN,16]}}', 16),
    "infinite offset": (b'{"a":{"dtype":"U8","shape":[16],"data_offsets":[0,Infinity]}}', 16),
    "one offset": ({"a": {"dtype": "U8", "shape": [16], "data_offsets": [0]}}, 16),
    "no offsets": ({"a": {"dtype": "U8", "shape": [16]}}, 16),
    "tensor is a list": ({"a": [1, 2]}, 16),
    "tensor is null": ({"a": None}, 16),
    "a name twice": (
        b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}}',
        16,
    ),
    "a key twice": (b'{"a":{"dtype":"U8","dtype":"U8","shape":[16],"data_offsets":[0,16]}}', 16),
    "a list": (b"[]", 0),
    "a number": (b"{7}", 0),
    "text": (b"hello world", 0),
    "cut short": (b'{"a":{"dtype":"U8","shape":[16]', 16),
    "not UTF-8": (b'{"\xff\xfe":1}', 0),
    "space in front": (b" {}", 0),
    "deep nesting": (b'{"a":' * 50_000, 0),
    "deep nesting of lists": (b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}", 0),
    "zeros": (bytes(64), 0),
}


@pytest.mark.parametrize("lie", LYING_HEADERS)
def test_an_inconsistent_header_is_refused(tmp_path, lie):
    header, data_bytes = LYING_HEADERS[lie]
    with pytest.raises(CacheError, match="^lie: "):
        read(write_file(tmp_path / "lie", header, bytes(data_bytes)))


def test_a_valid_header_is_read(tmp_path):
    header = {
        "__metadata__": {"a": "b"},
        "x": tensor(0, 12, [3], "F32"),
        "empty": tensor(12, 12, [0]),
        "y": tensor(12, 16),
    }
    found, start = read(write_file(tmp_path / "true", header, bytes(16)))
    assert set(found) == {"x", "empty", "y"} and start == 8 + len(json.dumps(header))


@pytest.mark.parametrize("front", [b"{", b" "], ids=["behind a brace", "alone"])
def test_100_mb_of_spaces_are_refused_without_much_memory(tmp_path, front):
    path = tmp_path / "lie"
    size = 100_000_000
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", size) + front)
        for _ in range(100):
            file.write(b" " * 1_000_000)
        file.truncate(8 + size)
    with pytest.raises(CacheError, match="^lie: "):
        read(path)


def test_a_shard_with_another_header_is_refused_by_the_reader(tmp_path):
    """The header names every blob, so a shard that describes itself otherwise is not the one that was published."""
    path = write_cache(tmp_path / "set", 3)
    (file,) = shard_files(path)
    content = bytearray(file.read_bytes())
    names = [name for name in json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]) if len(name) == 32]
    swapped = content.replace(names[0].encode(), b"0" * 32)
    file.write_bytes(swapped)
    with pytest.raises(CacheError, match=r"shards/s-00000.*header.*streamcache verify set"):
        open_cache(path)[0].latent["samples"].sum()


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 100, -1, -64], ids=lambda n: f"to {n}")
def test_a_shard_cut_short_is_an_error_that_names_it(tmp_path, cut):
    path = write_cache(tmp_path / "set", 3)
    (file,) = shard_files(path)
    content = file.read_bytes()
    file.write_bytes(content[:cut])
    with pytest.raises(CacheError, match=rf"{file.name}.*{len(content):,} expected"):
        open_cache(path)[0].realize()


def test_a_missing_shard_is_an_error_that_names_it_and_the_rest_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(shard, "SHARD_BYTES", 1)  # a shard a blob
    path = write_cache(tmp_path / "set", 2)
    victim = next(file for file in shard_files(path) if raw(open_cache(path)[1].latent["samples"]) in file.read_bytes())
    victim.unlink()
    cache = open_cache(path)
    cache[0].realize()
    with pytest.raises(CacheError, match=f"{victim.name}.*missing.*streamcache verify"):
        cache[1].realize()
    with pytest.raises(CacheError, match=f"{victim.name}.*missing"):
        cache.read_batch([1])


def test_mutated_headers_give_cache_errors_or_a_listing(tmp_path):
    write_shard(tmp_path / "good", [bits((5, 3), dtype, n) for n, dtype in enumerate(EVERY_DTYPE)], 4096)
    content = (tmp_path / "good").read_bytes()
    draw = random.Random(3)
    path = tmp_path / "mutant"
    for _ in range(400):
        mutant = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            mutant[draw.randrange(4096)] = (
                draw.choice(b'0123456789{}[]":,-.eE \xff\x00') if draw.random() < 0.8 else draw.randrange(256)
            )
        path.write_bytes(mutant)
        try:
            header, start = read(path)
        except CacheError:
            continue
        assert 8 <= start <= len(mutant)
        assert all(
            0 <= begin <= end <= len(mutant) - start for begin, end in (t["data_offsets"] for t in header.values())
        )


def test_different_blobs_with_the_same_hash_are_stored_in_separate_shards(tmp_path, monkeypatch):
    """A collision of the fast hash: equal names, so the two cannot share a file; both come back."""
    monkeypatch.setattr("streamcache.dataset_cache.write.blob_store.blob_hash", lambda data, dtype, shape: b"h" * 16)
    with CacheWriter(tmp_path / "set") as w:
        for n in range(4):
            w.add(thing=bits((8,), torch.uint8, n % 3))
    assert len(shard_files(tmp_path / "set")) == 3
    found = [raw(sample.fields["thing"]) for sample in open_cache(tmp_path / "set")]
    assert found == [raw(bits((8,), torch.uint8, n % 3)) for n in range(4)]
    for file in shard_files(tmp_path / "set"):
        safetensors.torch.load_file(file)
