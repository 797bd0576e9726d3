"""Keys are found by the table exactly where the index finds them."""

import hashlib

import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.dataset_cache.write.index_builder import KeyTable


def key(n: int) -> bytes:
    digest = hashlib.blake2b(str(n).encode(), digest_size=16).digest()
    # Some share their first half, as a table by halves must be able to tell apart.
    return b"\x80" * 8 + digest[8:] if n % 10 == 0 else digest


def test_a_table_finds_the_same_entries_as_the_index(tmp_path):
    with CacheWriter(tmp_path / "cache") as writer:
        for n in range(300):
            writer.put(key(n), torch.tensor(n), "number")
    index = open_cache(tmp_path / "cache")._index
    table = KeyTable(index)
    for n in range(-300, 300):
        assert table.find(key(n)) == index.find_entry(key(n)), n
    assert table.find(b"\xff" * 16) is table.find(b"\0" * 16) is None


def test_an_empty_table_finds_nothing(tmp_path):
    with CacheWriter(tmp_path / "cache"):
        pass
    table = KeyTable(open_cache(tmp_path / "cache")._index)
    assert [table.find(key(n)) for n in range(200)] == [None] * 200
