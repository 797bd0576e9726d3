"""Tar shards: the package webdataset reads them, and shards that are none are refused."""

import io
import json
import tarfile
from pathlib import Path

import pytest
import safetensors.torch

from streamcache.dataset_cache import CacheError, export_as, import_cache, open_cache
from streamcache.dataset_cache.exchange import webdataset as shards

from ...support.samples import same
from .exports import write_plain_cache, write_rich_cache


def test_f9_the_package_webdataset_reads_the_shards(tmp_path: Path):
    wds = pytest.importorskip("webdataset")
    cache = open_cache(write_plain_cache(tmp_path / "set"))
    export_as(tmp_path / "set", tmp_path / "out", "webdataset", file_bytes=4000)
    files = sorted(str(path) for path in (tmp_path / "out").glob("*.tar"))
    rows = list(wds.WebDataset(files, shardshuffle=False))
    assert len(files) > 1 and [row["__key__"] for row in rows] == [f"{i:08d}" for i in range(7)]
    for i, row in enumerate(rows):
        assert json.loads(row["json"])["captions"] == [cache[i].caption]
        own = cache[i].realize()
        assert same(safetensors.torch.load(row["latent.safetensors"]), own.latent)
        words = safetensors.torch.load(row["conditioning.safetensors"])
        assert same(words["0.0"], own.conditioning[0][0])
        assert same(words["0.1.pooled_output"], own.conditioning[0][1]["pooled_output"])


def test_f9_variants_and_fields_with_odd_names_have_files_of_their_own(tmp_path: Path):
    write_rich_cache(tmp_path / "set", 2)
    export_as(tmp_path / "set", tmp_path / "out", "webdataset")
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as tar:
        names = [name.partition(".")[2] for name in tar.getnames() if name.startswith("00000001")]
    assert names[0] == "json" and {"latent.safetensors", "latent.1.safetensors", "mask.safetensors"} <= set(names)


def shard(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    ("member", "data"),
    [
        (info("../00000000.json"), b"{}"),
        (info("00000000.json", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (info("00000000.json", tarfile.LNKTYPE, "other"), b""),
        (info("00000000.json", tarfile.CHRTYPE), b""),
        (info("00000000.json"), b"{"),
        (info("00000000.json"), b"[]"),
        (info("00000000.json"), b"[" * 100_000),
        (info("00000000.latent.safetensors"), b"x"),
        (info("00000000.json"), b'{"fields": {"latent": [{}]}}'),
    ],
)
def test_f9_members_that_are_no_sample_are_refused(tmp_path: Path, member: tarfile.TarInfo, data: bytes):
    write_plain_cache(tmp_path / "set", 1)
    export_as(tmp_path / "set", tmp_path / "out", "webdataset")
    shard(tmp_path / "out" / "shard-000000.tar", [(member, data)])
    with pytest.raises(CacheError, match=r"shard-000000\.tar"):
        import_cache(tmp_path / "out", tmp_path / "back")


def test_f9_sizes_that_lie_allocate_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_plain_cache(tmp_path / "set", 2)
    export_as(tmp_path / "set", tmp_path / "out", "webdataset")
    path = tmp_path / "out" / "shard-000000.tar"
    whole = path.read_bytes()
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE):
        member = info("00000000.json", kind)
        member.size = 1 << 40
        path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + whole)
        with pytest.raises(CacheError, match=r"shard-000000\.tar"):
            import_cache(tmp_path / "out", tmp_path / "back")
    path.write_bytes(whole)
    monkeypatch.setattr(shards, "MAX_FILE_BYTES", 1000)
    with pytest.raises(CacheError, match="larger than 1,000 bytes"):
        import_cache(tmp_path / "out", tmp_path / "back")
