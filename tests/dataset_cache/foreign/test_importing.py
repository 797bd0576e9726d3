"""Importing: kinds are recognized, nothing is replaced that was made otherwise, and samples stream."""

from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheError, open_cache, verify
from streamcache.dataset_cache.foreign import import_foreign

from ...support.datasets import write_set
from ...support.samples import anonymous_bytes, write_cache
from .trainers import ai_toolkit_latent, draw, image, kohya_npz


def test_f9_a_folder_with_caches_of_two_trainers_asks_which(tmp_path: Path):
    folder = tmp_path / "in"
    file = image(folder, "one.png")
    kohya_npz(folder / "one_0080x0064_sdxl.npz", draw(4, 8, 8))
    ai_toolkit_latent(file, draw(4, 8, 8, seed=1), "sdxl")
    with pytest.raises(CacheError, match="kohya and ai-toolkit"):
        import_foreign(folder, tmp_path / "set")
    assert import_foreign(folder, tmp_path / "set", kind="ai-toolkit").kind == "ai-toolkit"
    with pytest.raises(CacheError, match="expected one of kohya"):
        import_foreign(folder, tmp_path / "set", kind="other")


def test_f9_an_import_is_repeated_in_place_and_replaces_nothing_else(tmp_path: Path):
    folder = tmp_path / "in"
    for i in range(3):
        kohya_npz(folder / f"{i}_0080x0064_sdxl.npz", draw(4, 8, 8, seed=i))
    import_foreign(folder, tmp_path / "set")
    kohya_npz(folder / "1_0080x0064_sdxl.npz", draw(4, 8, 8, seed=9))
    (folder / "2_0080x0064_sdxl.npz").unlink()
    assert import_foreign(folder, tmp_path / "set").samples == 2
    cache = open_cache(tmp_path / "set")
    assert torch.equal(cache[1].latent["samples"], draw(1, 4, 8, 8, seed=9)) and list(verify(tmp_path / "set")) == []
    write_cache(tmp_path / "own", 3)
    with pytest.raises(CacheError, match="not a dataset of another trainer"):
        import_foreign(folder, tmp_path / "own")
    with pytest.raises(CacheError, match="same folder"):
        import_foreign(folder, folder)


def test_f9_a_folder_without_anything_to_import_is_refused_and_leaves_no_cache(tmp_path: Path):
    folder = tmp_path / "in"
    with pytest.raises(CacheError, match="no such folder"):
        import_foreign(folder, tmp_path / "set")
    image(folder, "one.png")
    with pytest.raises(CacheError, match="contains no cache of kohya"):
        import_foreign(folder, tmp_path / "set")
    with pytest.raises(CacheError, match="own: is a StreamCache already; use it as it is"):
        import_foreign(write_set(tmp_path / "own", range(2)), tmp_path / "set")
    kohya_npz(folder / "one_0080x0064_mystery.npz", draw(4, 8, 8))
    with pytest.raises(CacheError, match="no sample that can be imported.*mystery"):
        import_foreign(folder, tmp_path / "set")
    with pytest.raises(CacheError):
        open_cache(tmp_path / "set")


def test_a_file_that_is_not_imported_is_named_once(tmp_path: Path):
    folder = tmp_path / "in"
    kohya_npz(folder / "one_0080x0064_sdxl.npz", draw(4, 8, 8))
    (folder / "two_0080x0064_sdxl.npz").write_bytes(b"damaged")
    (skipped,) = import_foreign(folder, tmp_path / "set").skipped
    assert skipped.startswith("two_0080x0064_sdxl.npz: cannot be read as npz") and skipped.count("two_") == 1


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux")
def test_f9_importing_ten_times_as_much_takes_no_more_memory(tmp_path: Path):
    def peak(count: int) -> int:
        folder = tmp_path / str(count)
        for i in range(count):
            kohya_npz(folder / f"{i:03d}_1024x1024_sdxl.npz", draw(4, 128, 128, seed=i))  # 256 KB each
        most, start = 0, anonymous_bytes()

        def watch(done: int, total: int | None) -> None:
            nonlocal most
            most = max(most, anonymous_bytes() - start)

        import_foreign(folder, tmp_path / f"set-{count}", progress=watch)
        return most

    peak(4)  # what is allocated once
    assert peak(100) < peak(10) + (8 << 20)  # 25 MB of latents
