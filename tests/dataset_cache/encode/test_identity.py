"""Identities of weights are hashes of their content."""

import builtins
import shutil

import pytest
import torch

from streamcache.dataset_cache.encode.identity import digest_of, file_identity, files_identity, object_identity
from streamcache.errors import CacheError

from ...support.fixtures import settle, touch


@pytest.fixture
def opened(monkeypatch):
    """The paths that were opened."""
    paths = []
    real = builtins.open

    def spy(path, *args, **kwargs):
        paths.append(str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", spy)
    return paths


def test_e5_an_unchanged_weight_file_is_hashed_once(tmp_path, opened):
    path = tmp_path / "vae.safetensors"
    path.write_bytes(b"weights" * 1000)
    settle()
    first = file_identity(path)
    opened.clear()
    assert file_identity(path) == first
    assert str(path) not in opened


def test_e5_a_copied_or_renamed_weight_file_has_the_same_identity(tmp_path):
    path = tmp_path / "vae.safetensors"
    path.write_bytes(b"weights" * 1000)
    first = file_identity(path)
    copy = shutil.copy(path, tmp_path / "copy.safetensors")
    assert file_identity(copy) == first
    assert file_identity(path.rename(tmp_path / "renamed.safetensors")) == first


def test_e5_a_changed_weight_file_has_another_identity(tmp_path):
    path = tmp_path / "vae.safetensors"
    path.write_bytes(b"weights")
    settle()
    first = file_identity(path)
    path.write_bytes(b"WEIGHTS")
    assert file_identity(path) != first


def test_a_touched_weight_file_keeps_its_identity(tmp_path):
    path = tmp_path / "vae.safetensors"
    path.write_bytes(b"weights")
    settle()
    first = file_identity(path)
    touch(path)
    assert file_identity(path) == first


def test_a_model_of_several_files_depends_on_all_of_them(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(path.name.encode())
    assert files_identity(paths) != files_identity(paths[::-1])


def test_a_missing_weight_file_is_reported(tmp_path):
    with pytest.raises(CacheError, match=r"gone\.safetensors: the weights cannot be read"):
        file_identity(tmp_path / "gone.safetensors")


def test_e5_objects_without_a_file_are_hashed_in_memory():
    weights = {"a": torch.randn(3, 4), "b": torch.tensor(1.0), "empty": torch.zeros(0, 3)}
    first = object_identity(weights)
    assert object_identity(dict(reversed(weights.items()))) == first
    assert object_identity({**weights, "a": weights["a"].t().contiguous().t()}) == first
    assert object_identity({**weights, "a": weights["a"] + 1}) != first
    assert object_identity({**weights, "a": weights["a"].to(torch.bfloat16)}) != first
    assert object_identity({**weights, "a": weights["a"].reshape(4, 3)}) != first
    assert object_identity({**weights, "a": weights["a"].to(torch.float8_e4m3fn)}) != first


def test_weights_without_values_are_refused():
    with pytest.raises(CacheError, match="meta device"):
        object_identity({"a": torch.zeros(3, device="meta")})


def test_the_order_of_settings_does_not_change_their_hash():
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1}) != digest_of({"a": 1, "b": [3]})
