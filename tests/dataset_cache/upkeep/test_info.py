"""What a cache contains and what it takes, in words."""

from dataclasses import replace

import pytest

from streamcache.dataset_cache import open_cache, plural
from streamcache.dataset_cache.format.storage import LocalStorage
from streamcache.dataset_cache.upkeep.info import usage_of
from streamcache.dataset_cache.write import open_checked

from ...support.datasets import write_set


def test_plurals_are_spelled_out():
    assert [plural(n, "entry") for n in (1, 2)] == ["1 entry", "2 entries"]


@pytest.mark.parametrize("seconds", [2**40, 2**60, -(2**60)])
def test_a_cache_with_an_impossible_date_is_described(tmp_path, seconds):
    path = write_set(tmp_path / "set", range(2))
    with open_cache(path) as cache:
        current = open_checked(path, cache.manifest)
    status = current.storage.stat("dataset.json")

    class Dated(LocalStorage):
        """File systems other than ext4 store such dates."""

        def stat(self, name):
            found = super().stat(name)
            return status._replace(modified=float(seconds)) if name == "dataset.json" else found

    assert isinstance(usage_of(replace(current, storage=Dated(path)), (), None).published, str)
