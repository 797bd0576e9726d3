"""Segments: what a writer that never published left behind is found again, wherever it was interrupted."""

from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, SampleFacts, open_cache
from streamcache.dataset_cache.format import LocalStorage, segment
from streamcache.dataset_cache.write import publishing

COUNT = 5


def latent(i: int) -> dict[str, torch.Tensor]:
    return {"samples": torch.full((1, 4, 8, 8), float(i))}


def write(path: Path) -> int:
    """Puts what is not there yet; returns how many entries that were."""
    with CacheWriter(path) as writer:
        missing = [i for i in range(COUNT) if not writer.has(f"key {i}")]
        for i in range(COUNT):
            writer.once(f"key {i}", lambda i=i: latent(i), "latent")
            writer.sample({"latent": [f"key {i}"]}, SampleFacts(source=f"{i}.png"))
    return len(missing)


def fail(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "step"), [(segment, "seal"), (publishing, "write_index"), (publishing, "write_manifest")]
)
def test_a13_entries_survive_an_interrupt_while_publishing(
    module: object, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Small shards are cut to size when they are sealed, which moves their blobs.
    with monkeypatch.context() as patch:
        patch.setattr(module, step, fail)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "set")
    assert write(tmp_path / "set") == 0
    cache = open_cache(tmp_path / "set", check=True)
    assert [cache.read_batch([i]).latents.unique().tolist() for i in range(COUNT)] == [[float(i)] for i in range(COUNT)]


def test_a_blob_that_two_entries_share_is_recovered_once(tmp_path: Path):
    writer = CacheWriter(tmp_path / "set")
    for key in ("one", "two"):
        writer.put(key, latent(1), "latent")
    writer.flush()
    (folder,) = (tmp_path / "set" / segment.BUILD).iterdir()
    recovered = segment.recover(LocalStorage(tmp_path / "set"), f"{segment.BUILD}/{folder.name}")
    assert len(recovered.entries) == 2
    assert [len(shard.blobs) for shard in recovered.shards] == [1]
    writer.close()


def test_an_empty_tensor_and_the_blob_at_its_place_are_both_recovered(tmp_path: Path):
    first = {"none": torch.empty(0), "some": torch.arange(9)}
    writer = CacheWriter(tmp_path / "set")
    writer.put("first", first, "extra")
    writer.put("second", {"none": torch.empty(0)}, "extra")
    writer.close()
    with CacheWriter(tmp_path / "set") as writer:
        writer.sample({"extra": ["first"]})
        writer.sample({"extra": ["second"]})
    cache = open_cache(tmp_path / "set", check=True)
    assert torch.equal(cache[0].realize().fields["extra"]["some"], first["some"])
    assert cache[1].realize().fields["extra"]["none"].shape == (0,)


def test_a13_an_entry_that_shares_a_blob_of_a_shard_moved_by_a_killed_writer_survives_the_next_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, shared = tmp_path / "set", {**latent(2), "more": 1}
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "write_manifest", fail)
        with pytest.raises(KeyboardInterrupt), CacheWriter(path) as writer:
            for i in range(COUNT):
                writer.put(f"key {i}", latent(i), "latent")
    second = CacheWriter(path)  # finds the blob in the shard that was moved and cut to size
    second.put("shared", shared, "latent")
    second.close()
    with CacheWriter(path) as writer:
        writer.sample({"latent": ["shared"]})
    assert open_cache(path, check=True).read_batch([0]).latents.unique().tolist() == [2.0]
