"""The reference transformer and its file."""

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.reference import model as models
from streamcache.reference.encoders import (
    CHANNELS,
)
from streamcache.reference.model import ReferenceModel

from .awake import awake


def test_initial_weights_depend_only_on_the_seed():
    torch.manual_seed(1)
    first = ReferenceModel(seed=3).state_dict()
    expected = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), expected)  # making a model drew nothing from the global generator
    again, other = ReferenceModel(seed=3).state_dict(), ReferenceModel(seed=4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["image_in.weight"], other["image_in.weight"])


def test_a_saved_model_predicts_the_same(tmp_path):
    model = awake("eps")
    models.save_model(tmp_path / "base.safetensors", model)
    again = models.load_model(tmp_path / "base.safetensors")
    rows = torch.randn(1, CHANNELS, 4, 4), torch.tensor([0.5]), torch.randn(1, 8, 64), torch.randn(1, 64)
    assert torch.equal(model(*rows), again(*rows)) and again.size == model.size


def test_a_saved_model_has_the_permissions_of_any_new_file(tmp_path):
    """safetensors' own save_file may leave a file that only its owner can read."""
    (tmp_path / "plain").write_bytes(b"")
    models.save_model(tmp_path / "model.safetensors", ReferenceModel())
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_that_is_not_a_reference_model_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(TrainError, match=r"other.safetensors: not a reference model"):
        models.load_model(tmp_path / "other.safetensors")
