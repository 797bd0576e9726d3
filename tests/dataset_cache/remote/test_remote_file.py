"""An open file at an address: what is asked for, and where the bytes go."""

import random

import pytest

from streamcache.dataset_cache import CacheError
from streamcache.dataset_cache.address import Address
from streamcache.dataset_cache.remote.client import Found
from streamcache.dataset_cache.remote.remote_file import RemoteFile

CONTENT = random.Random(0).randbytes(9 << 20)
HEAD = 1000


@pytest.fixture
def asked() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def file(asked) -> RemoteFile:
    """A file of which the first bytes are known; `asked` has every other range that was asked for."""

    def request(offset, size, take):
        asked.append((offset, size))
        middle = size // 2  # in two pieces, the second one first
        take(middle, CONTENT[offset + middle : offset + size])
        take(0, CONTENT[offset : offset + middle])

    place = Address.parse("s3://bucket/set/shards/a")
    return RemoteFile(place, "shards/a", Found(len(CONTENT), 0.0, "tag"), CONTENT[:HEAD], request)


def test_what_came_when_the_file_was_opened_is_not_asked_for_again(file, asked):
    assert bytes(file.read(0, 8)) == CONTENT[:8] and bytes(file.read(8, HEAD - 8)) == CONTENT[8:HEAD] and asked == []


@pytest.mark.parametrize("sizes", [(5, 0, 7, 100), (112,), (1,) * 112])
def test_buffers_are_filled_one_after_the_other(file, asked, sizes):
    for offset in (10, 5000):
        buffers = [bytearray(size) for size in sizes]
        file.read_into(offset, [memoryview(buffer) for buffer in buffers], 112)
        assert b"".join(buffers) == CONTENT[offset : offset + 112]
    assert asked == [(5000, 112)]


def test_a_reader_that_goes_from_front_to_back_asks_for_ever_larger_parts(file, asked):
    position = HEAD
    file.read(0, HEAD)
    while position < len(CONTENT):
        size = min(10_000, len(CONTENT) - position)
        assert bytes(file.read(position, size)) == CONTENT[position : position + size]
        position += size
    assert len(asked) < 6 and sum(size for _, size in asked) < len(CONTENT) + 100_000


def test_a_reader_that_jumps_asks_only_for_what_it_reads(file, asked):
    draw = random.Random(1)
    places = [draw.randrange(HEAD, len(CONTENT) - 100) for _ in range(20)]
    for place in sorted(places, reverse=True):
        assert bytes(file.read(place, 100)) == CONTENT[place : place + 100]
    assert sum(size for _, size in asked) == 2000


def test_nothing_is_asked_for_beyond_the_end(file, asked):
    for read in (
        lambda: file.read(len(CONTENT) - 1, 2),
        lambda: file.read_into(len(CONTENT), [memoryview(bytearray(1))], 1),
    ):
        with pytest.raises(CacheError, match="^s3://bucket/set/shards/a: ends at 9,437,184, before the data"):
            read()
    assert asked == [] and bytes(file.map()) == CONTENT
