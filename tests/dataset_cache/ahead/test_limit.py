"""The limit of local copies."""

import shutil
from collections import namedtuple

import pytest

from streamcache.dataset_cache.ahead import limit
from streamcache.dataset_cache.ahead.limit import MOST_BYTES, cache_limit, parse_size
from streamcache.errors import SettingError


@pytest.mark.parametrize(("text", "size"), [
    ("20GB", 20 * 10**9), ("1.5 tb", 15 * 10**11), ("800m", 8 * 10**8), ("4096", 4096), ("0", 0), (" 3 kB ", 3000),
])  # fmt: skip
def test_f5_a_limit_is_a_size_as_people_write_it(text, size) -> None:
    assert parse_size(text, "--cache-limit") == size


@pytest.mark.parametrize("text", ["", "much", "-1", "20 GBs", "1e9", "GB", "nan"])
def test_f5_a_wrong_limit_is_named_with_its_place(text) -> None:
    with pytest.raises(SettingError, match="STREAMCACHE_CACHE_LIMIT: found .*expected a size such as 20GB"):
        parse_size(text, "STREAMCACHE_CACHE_LIMIT")


def test_f5_a_limit_comes_from_the_program_the_environment_or_the_disk(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("STREAMCACHE_CACHE_DIR", str(tmp_path / "not there yet"))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100, 0, 30 * 10**9 if folder == tmp_path else 0))
    assert cache_limit() == 15 * 10**9
    assert cache_limit(used=10 * 10**9) == 20 * 10**9  # what is there already does not make it smaller
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100, 0, 10**15))
    assert cache_limit() == MOST_BYTES
    monkeypatch.setenv("STREAMCACHE_CACHE_LIMIT", "7MB")
    assert cache_limit() == 7 * 10**6
    monkeypatch.setattr(limit, "_chosen", None)  # put back at the end
    for given, expected in ((0, 0), ("0", 0), ("3GB", 3 * 10**9)):
        limit.use_cache_limit(given)
        assert cache_limit() == expected
    limit.use_cache_limit(None)
    assert cache_limit() == 7 * 10**6
