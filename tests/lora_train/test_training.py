"""A whole training: pictures for whoever gives a VAE. How it ends is told by the command's and the node's tests."""

import pytest

from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.training import with_samples


@pytest.mark.parametrize(
    ("settings", "every"),
    [
        ({"steps": 800}, 100),
        ({"steps": 3}, 1),
        ({"steps": 800, "sample_every": 7}, 7),
        ({"steps": 800, "epochs": 5}, 200),
    ],
)
def test_pictures_come_at_an_interval_also_where_none_is_set(settings: dict, every: int):
    assert with_samples(TrainConfig(**settings)).sample_every == every
