"""Importing asks the folder what it is: an export, a cache of another trainer, or a dataset of ComfyUI's nodes."""

import json
from pathlib import Path

import torch

from streamcache.dataset_cache import export_as, import_cache, open_cache

from ..foreign.trainers import draw, kohya_npz
from .exports import write_plain_cache


def test_f9_the_folder_tells_what_it_is(tmp_path: Path):
    write_plain_cache(tmp_path / "set")
    export_as(tmp_path / "set", tmp_path / "out", "webdataset")
    assert import_cache(tmp_path / "out", tmp_path / "a").samples == 7
    kohya_npz(tmp_path / "npz" / "x_0080x0064_sdxl.npz", draw(4, 8, 8))
    assert "kohya" in str(import_cache(tmp_path / "npz", tmp_path / "b"))
    (tmp_path / "old").mkdir()
    words = [[draw(1, 3, 4), {}]]
    torch.save(
        {"latents": [{"samples": draw(1, 4, 8, 8)}], "conditioning": [words]}, tmp_path / "old" / "shard_0000.pkl"
    )
    (tmp_path / "old" / "metadata.json").write_text(json.dumps({"num_samples": 1, "num_shards": 1}))
    assert "Converted 1 sample" in str(import_cache(tmp_path / "old", tmp_path / "c"))
    assert [len(open_cache(tmp_path / name)) for name in "abc"] == [7, 1, 1]
