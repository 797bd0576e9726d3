"""Parquet files: pyarrow reads them without this pack, and files that are packed otherwise are refused."""

import json
import sys
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheError, export_as, import_cache, open_cache

from ...support.samples import same
from .exports import write_plain_cache, write_rich_cache

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}


def tensor(part: dict) -> torch.Tensor:
    """As a program without this pack makes it."""
    return torch.frombuffer(bytearray(part["data"]), dtype=DTYPES[part["dtype"]]).reshape(part["shape"])


def test_f9_pyarrow_reads_tensors_captions_and_sizes(tmp_path: Path):
    cache = open_cache(write_plain_cache(tmp_path / "set"))
    export_as(tmp_path / "set", tmp_path / "out", "parquet")
    rows = pq.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist()
    assert len(rows) == 7
    for i, row in enumerate(rows):
        own = cache[i].realize()
        assert (row["index"], row["source"], row["caption"], row["captions"]) == (
            i,
            own.source,
            own.caption,
            [own.caption],
        )
        assert tuple(row["original_size"]) == own.original_size and tuple(row["crop"]) == own.crop
        (part,) = row["latent"][0]
        assert part["name"] == "samples" and same(tensor(part), own.latent["samples"])
        states, pooled = row["conditioning"][0]
        assert same(tensor(states), own.conditioning[0][0])
        assert pooled["dtype"] == "BF16" and same(tensor(pooled), own.conditioning[0][1]["pooled_output"])


def test_f9_fp8_is_bytes_with_its_type_and_variants_are_a_list(tmp_path: Path):
    cache = open_cache(write_rich_cache(tmp_path / "set"))
    export_as(tmp_path / "set", tmp_path / "out", "parquet")
    row = pq.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist()[1]
    assert len(row["latent"]) == 2 and len(row["conditioning"]) == 2
    (part,) = row["conditioning"][1]
    own = cache.sample(1, {"conditioning": 1}).realize().conditioning[0][0]
    assert part["dtype"] == "F8_E4M3" and same(tensor(part), own)
    assert "field source" in row and row["source"] == "folder/1 ü.png"


def test_f9_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_plain_cache(tmp_path / "set")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for form in ("parquet", "hf"):
        with pytest.raises(CacheError, match=r"streamcache\[export\]"):
            export_as(tmp_path / "set", tmp_path / "out", form)
    assert not (tmp_path / "out").exists()
    export_as(tmp_path / "set", tmp_path / "out", "webdataset")


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"compression": "none", "use_dictionary": True}])
def test_f9_files_that_could_unpack_to_more_are_refused(tmp_path: Path, options: dict):
    write_plain_cache(tmp_path / "set")
    export_as(tmp_path / "set", tmp_path / "out", "parquet")
    path = tmp_path / "out" / "part-00000.parquet"
    pq.write_table(pq.read_table(path), path, **options)
    with pytest.raises(CacheError, match="packed in another way"):
        import_cache(tmp_path / "out", tmp_path / "back")


def test_f9_rows_that_lie_are_refused(tmp_path: Path):
    write_plain_cache(tmp_path / "set", 2)
    export_as(tmp_path / "set", tmp_path / "out", "parquet")
    path = tmp_path / "out" / "part-00000.parquet"
    table = pq.read_table(path)

    def changed(change) -> None:
        rows = table.to_pylist()
        change(rows[1])
        new = pa.Table.from_pylist(rows, schema=table.schema)
        pq.write_table(new, path, compression="none", use_dictionary=False)
        with pytest.raises(CacheError, match=r"part-00000\.parquet"):
            import_cache(tmp_path / "out", tmp_path / "back")

    changed(lambda row: row["latent"][0][0].update(shape=[1 << 40, 1 << 40]))
    changed(lambda row: row["latent"][0][0].update(shape=[-1, 4]))
    changed(lambda row: row["latent"][0][0].update(dtype="PICKLE"))
    changed(lambda row: row["latent"][0][0].update(data=b""))
    changed(lambda row: row.update(latent=[]))
    changed(lambda row: row.update(latent=None))
    changed(lambda row: row.update(streamcache="{"))
    changed(lambda row: row.update(streamcache=json.dumps([])))
    changed(lambda row: row.update(streamcache=json.dumps({"fields": {"latent": [{}]}})))
    pq.write_table(table.drop(["streamcache"]), path, compression="none", use_dictionary=False)
    with pytest.raises(CacheError, match="only files that streamcache exported"):
        import_cache(tmp_path / "out", tmp_path / "back")
