"""Codecs for types that are not tensors."""

from typing import Any

import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, Codec, LazyTensor, open_cache, register_codec
from streamcache.dataset_cache.format import tensors as codecs
from streamcache.dataset_cache.format.skeleton import Layout, split

from ...support.samples import bits, same


class Anything:
    pass


class Point:
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


@pytest.fixture
def point_codec():
    register_codec(Codec("test.Point", Point, lambda p: {"x": p.x, "y": p.y}, lambda s: Point(s["x"], s["y"])))
    yield
    codecs._by_name.pop("test.Point", None)
    codecs._by_type.pop(Point, None)


def test_c1_a_type_with_a_codec_is_read_back_and_stays_lazy(tmp_path, point_codec):
    with CacheWriter(tmp_path / "set") as w:
        w.add(thing=[Point(bits((2,)), {"inner": Point(1, "two")})])
    found = open_cache(tmp_path / "set")[0].fields["thing"][0]
    assert isinstance(found.x, LazyTensor) and same(found.x, bits((2,)))
    assert (found.y["inner"].x, found.y["inner"].y) == (1, "two")
    real = open_cache(tmp_path / "set")[0].realize().fields["thing"][0]
    assert type(real.x) is torch.Tensor


def test_a_missing_codec_affects_only_its_own_field(tmp_path, point_codec):
    with CacheWriter(tmp_path / "set") as w:
        w.add(latent={"samples": bits((1, 4, 2, 2))}, thing=Point(1, 2))
    codecs._by_name.pop("test.Point")
    cache = open_cache(tmp_path / "set")
    assert same(cache[0].latent["samples"], bits((1, 4, 2, 2)))
    with pytest.raises(CacheError, match="test.Point"):
        cache[0].fields["thing"]


def test_a_codec_that_returns_unstorable_data_is_refused_with_its_path(point_codec):
    with pytest.raises(CacheError, match=r"thing\[0\]<test.Point>\['y'\].*Anything"):
        split([Point(1, Anything())], "thing")


def test_a_codec_that_cannot_rebuild_stored_data_raises_a_cache_error(point_codec):
    layout = Layout('{"tensors":[],"root":["codec","test.Point",["str"]]}')
    with pytest.raises(CacheError, match="'test.Point' cannot be rebuilt"):
        layout.read((), memoryview(b"\4\0\0\0text"), 0)
