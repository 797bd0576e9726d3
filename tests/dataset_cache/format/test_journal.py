"""Journals: records that cannot be true."""

from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import LocalStorage, segment
from streamcache.dataset_cache.format.journal import Journal


def latent(i: int) -> dict[str, torch.Tensor]:
    return {"samples": torch.full((1, 4, 8, 8), float(i))}


@pytest.mark.parametrize("place", [float("inf"), -1, 0, "0", None])
def test_impossible_places_in_a_journal_are_ignored(place: object, tmp_path: Path):
    path = tmp_path / "set"
    writer = CacheWriter(path)
    writer.put("good", latent(1), "latent")
    writer.close()
    (folder,) = (path / segment.BUILD).iterdir()
    journal = Journal(LocalStorage(folder), "journal")
    refs = [[f"{folder.name}/0", place, "00" * 16]]
    journal.append(kind="entry", key="00" * 16, field="latent", layout=0, leaves="", refs=refs)
    journal.append(kind="sealed", shard=0, file=f"s-00000-{'0' * 32}.safetensors", shift=64)
    journal.flush()
    journal.close()
    (path / "shards").mkdir()
    (folder / "0").replace(path / "shards" / f"s-00000-{'0' * 32}.safetensors")
    with pytest.raises(CacheError, match="never published"):
        open_cache(path)
    CacheWriter(path).close()
