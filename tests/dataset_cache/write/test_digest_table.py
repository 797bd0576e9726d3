"""The table answers as a dict does, also for keys that are alike."""

import random

from streamcache.dataset_cache.write.digest_table import DigestTable


def test_every_digest_is_found_and_no_other():
    draw, table, expected = random.Random(0), DigestTable(), {}
    for n in range(20_000):
        digest = draw.randbytes(16)
        table.add(digest, n * n)
        expected[digest] = n * n
    assert len(table) == 20_000
    assert all(table.get(digest) == value for digest, value in expected.items())
    assert all(table.get(draw.randbytes(16)) is None for _ in range(2000))


def test_keys_that_count_up_are_as_good_as_others():
    table = DigestTable()
    for n in range(5000):
        table.add(n.to_bytes(16, "big"), n)
    assert all(table.get(n.to_bytes(16, "big")) == n for n in range(5000)) and table.get(bytes([9]) * 16) is None
