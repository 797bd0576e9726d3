"""An index that lies under a right hash: a reader and a writer meet it with an error of the cache, or with its data."""

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache

from ...support.datasets import forge, put_sample, write_set
from ..upkeep.test_verify import LIES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", range(5))


def rewrite_layouts(old: str, new: str) -> Callable[[dict[str, np.ndarray]], None]:
    """Says something else in every layout."""

    def change(arrays: dict[str, np.ndarray]) -> None:
        ends = [0, *arrays["layout_ends"].tolist()]
        texts = [arrays["layouts"][a:b].tobytes().decode() for a, b in pairwise(ends)]
        assert any(old in text for text in texts)
        changed = [text.replace(old, new).encode() for text in texts]
        arrays["layouts"] = np.frombuffer(b"".join(changed), "u1")
        arrays["layout_ends"] = np.cumsum([len(text) for text in changed]).astype("<u8")

    return change


LAYOUT_LIES = {
    "a tensor larger than memory": ("[1,4,8,8]", "[1,4,1024,8388608]"),
    "a tensor larger than a number": ("[1,4,8,8]", "[1,4,536870912,536870911]"),
    "a latent of another shape": ("[1,4,8,8]", "[1,4,8,16]"),
    "a latent of two rows": ("[1,4,8,8]", "[2,2,8,8]"),
    "no latent": ('"samples"', '"somples"'),
    "an unknown codec": ('["tensor",0]', '["codec",["tensor"],["tensor",0]]'),
}


def read_everything(path: Path) -> None:
    cache = open_cache(path)
    for i in range(len(cache)):
        for field in cache.fields:
            with suppress(CacheError):
                cache[i].realize().fields.get(field)
        with suppress(CacheError):
            batch = cache.read_batch([i, min(i + 2, len(cache) - 1)])
            assert all(len(batch.fields[name]) == 2 for name in batch.fields)


@pytest.mark.parametrize("lie", [*LIES, *LAYOUT_LIES])
def test_reading_a_forged_index_returns_data_or_raises_a_cache_error(path: Path, lie: str):
    forge(path, LIES[lie] if lie in LIES else rewrite_layouts(*LAYOUT_LIES[lie]))
    with suppress(CacheError):
        read_everything(path)


@pytest.mark.parametrize("lie", [lie for lie in (*LIES, *LAYOUT_LIES) if not lie.startswith("a codec")])
def test_a_writer_refuses_a_forged_index(path: Path, lie: str):
    forge(path, LIES[lie] if lie in LIES else rewrite_layouts(*LAYOUT_LIES[lie]))
    with pytest.raises(CacheError), CacheWriter(path, append=True) as writer:
        put_sample(writer, 7)
