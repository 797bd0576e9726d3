"""LoKr: how a size is split."""

import pytest

from streamcache.lora_train.adapters.lokr import split_size


@pytest.mark.parametrize(
    "size, factor, expected", [(128, None, (8, 16)), (127, None, (1, 127)), (360, 4, (4, 90)), (1, 8, (1, 1))]
)
def test_lokr_splits_a_size_near_its_root(size, factor, expected):
    assert split_size(size, factor) == expected
