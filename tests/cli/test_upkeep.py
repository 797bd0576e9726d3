"""`streamcache clean`, `compact`, `convert`, `export`, `import`, `merge` and `verify`, on real caches."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, open_cache

from ..dataset_cache.foreign.trainers import draw, image, kohya_npz
from ..support.commands import run, run_json
from ..support.datasets import SHARED, blob_place, core_dataset, flip, folder_bytes, listing, write_set
from ..support.samples import assert_holds, write_cache


def test_c11_convert_imports_cores_pickle_shards(tmp_path: Path, capsys: pytest.CaptureFixture):
    source, target = core_dataset(tmp_path / "old"), tmp_path / "Neue Bilder ünï"
    code, facts = run_json(capsys, "convert", source, "--to", target)
    assert (code, facts["samples"]) == (0, 3)
    assert len(open_cache(target)) == 3
    assert run("convert", source, "--to", tmp_path / "again") == 0
    assert "Converted 3 samples" in capsys.readouterr().out


def test_verify_exits_with_3_and_names_the_sample(path: Path, capsys: pytest.CaptureFixture):
    assert run("verify", path) == 0 and "no problems found" in capsys.readouterr().out
    flip(*blob_place(path, "latent 1"))
    assert run("verify", path) == 3
    assert "sample 1 (1.png)" in capsys.readouterr().out
    code, facts = run_json(capsys, "verify", path)
    assert code == 3 and facts["problems"][0]["source"] == "1.png" and facts["repaired"] is None


def test_verify_repair_drops_damaged_samples(path: Path, capsys: pytest.CaptureFixture):
    flip(*blob_place(path, "latent 1"))
    code, facts = run_json(capsys, "verify", "--repair", path)
    assert code == 1 and facts["repaired"] is None and "--yes" in facts["error"] and len(open_cache(path)) == 3
    code, facts = run_json(capsys, "verify", "--repair", "--yes", path)
    assert code == 0 and facts["repaired"]["samples"] == [[1, "1.png"]]
    assert run("verify", path) == 0 and len(open_cache(path)) == 2


def test_verify_prints_some_problems_of_a_kind_or_all(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = write_set(tmp_path / "set", range(30))
    flip(*blob_place(path, SHARED))
    assert run("verify", path) == 3
    assert "and 10 more" in capsys.readouterr().out
    run("verify", path, "--all")
    assert "sample 29" in capsys.readouterr().out


def test_a18_clean_only_counts_without_apply(path: Path, capsys: pytest.CaptureFixture):
    before = listing(path)
    assert run("clean", path) == 0
    assert "--unused --apply" in capsys.readouterr().out and listing(path) == before
    assert run("clean", path, "--apply") == 2 and listing(path) == before


def test_clean_counts_entries_of_missing_folders(tmp_path: Path, picture, capsys: pytest.CaptureFixture):
    for folder in ("kept", "b", "c"):
        picture(f"set/{folder}/0.png", size=(64, 64), seed=ord(folder[0]), caption=folder)
    encode = ("encode", tmp_path / "set", "--to", tmp_path / "cache", "--reference", "--resolution", "64")
    assert run(*encode) == 0
    for folder in ("b", "c"):
        shutil.rmtree(tmp_path / "set" / folder)
    assert run(*encode, "--allow-missing") == 0
    capsys.readouterr()
    assert run("clean", tmp_path / "cache") == 0
    printed = capsys.readouterr().out
    assert "entries of missing folders, " in printed and "folderss" not in printed
    assert "set/b, set/c were missing at the last encode" in printed
    assert run("clean", tmp_path / "cache", "--missing", "--apply") == 0
    assert "entries of missing folders, " in capsys.readouterr().out


def test_a17_clean_removes_what_it_counted(path: Path, capsys: pytest.CaptureFixture):
    _, preview = run_json(capsys, "clean", path, "--unused", "--debris")
    before = folder_bytes(path)
    code, facts = run_json(capsys, "clean", path, "--unused", "--debris", "--apply")
    assert code == 0 and facts["removed"] and not preview["removed"]
    assert facts["bytes"] == preview["bytes"] == before - folder_bytes(path) > 0
    assert run("clean", path) == 0 and "Nothing to remove" in capsys.readouterr().out


def test_a_cache_in_use_is_exit_code_4(path: Path, capsys: pytest.CaptureFixture):
    reader = open_cache(path)
    assert run("clean", path, "--unused", "--apply") == 4
    assert f"process {os.getpid()}" in capsys.readouterr().err
    assert run("clean", path) == 0 and "in use" in capsys.readouterr().out
    del reader
    writer = CacheWriter(path, append=True)
    assert run("compact", path) == 4
    writer.close()


def test_merge_export_and_compact_run(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    other = write_set(tmp_path / "other", range(3, 6))
    code, facts = run_json(capsys, "merge", path, other, "--to", tmp_path / "all of it")
    assert (code, facts["samples"]) == (0, 6)
    code, facts = run_json(capsys, "export", tmp_path / "all of it", "--to", tmp_path / "copy")
    assert (code, facts["samples"]) == (0, 6)
    assert run("export", "--duplicate", path, "--to", tmp_path / "second") == 0
    assert open_cache(tmp_path / "second").id != open_cache(path).id
    write_set(path, [8], append=True)
    code, facts = run_json(capsys, "compact", path)
    assert (code, facts["shards"]) == (0, [4, 2])
    assert run("merge", path, "--to", tmp_path / "copy") == 1
    assert "already contains a cache" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["webdataset", "parquet", "hf"])
def test_f9_a_cache_is_exported_and_imported_again(tmp_path: Path, capsys: pytest.CaptureFixture, form: str):
    write_cache(tmp_path / "set", 3)
    code, facts = run_json(capsys, "export", tmp_path / "set", "--to", tmp_path / "out", "--format", form)
    assert code == 0 and (facts["samples"], facts["format"]) == (3, form)
    assert run("import", tmp_path / "out", "--to", tmp_path / "back") == 0
    assert f"Imported 3 samples ({form}) to back" in capsys.readouterr().out
    with open_cache(tmp_path / "back") as cache:
        assert_holds(cache, range(3))


def test_f9_export_writes_a_cache_unless_a_format_is_named(tmp_path: Path, capsys: pytest.CaptureFixture):
    write_cache(tmp_path / "set", 3)
    assert run("export", tmp_path / "set", "--to", tmp_path / "copy") == 0
    assert len(open_cache(tmp_path / "copy")) == 3
    assert run("export", tmp_path / "set", "--to", tmp_path / "x", "--format", "parquet", "--duplicate") == 2
    assert "--duplicate" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_f9_a_trainers_cache_is_imported_with_a_report(tmp_path: Path, capsys: pytest.CaptureFixture):
    latent = draw(4, 8, 8)
    kohya_npz(tmp_path / "cache" / "one_0080x0064_sdxl.npz", latent)
    kohya_npz(tmp_path / "cache" / "two_0080x0064_mystery.npz", latent)
    image(tmp_path / "images", "one.png", caption="a cat")
    arguments = (
        "import",
        tmp_path / "cache",
        "--to",
        tmp_path / "set",
        "--images",
        tmp_path / "images",
        "--kind",
        "kohya",
    )
    assert run(*arguments) == 0
    printed = capsys.readouterr().out
    assert "Imported 1 sample (kohya sd-scripts) to set" in printed and "1 × no text encoder outputs" in printed
    assert "Not imported: 1" in printed and '"mystery"' in printed
    with open_cache(tmp_path / "set") as cache:
        assert cache[0].caption == "a cat" and torch.equal(cache[0].latent["samples"], latent[None])
    code, facts = run_json(capsys, *arguments)
    assert code == 0 and facts["kind"] == "kohya sd-scripts" and len(facts["skipped"]) == 1
    assert run("import", tmp_path / "images", "--to", tmp_path / "x") == 1
    assert "contains no cache of kohya" in capsys.readouterr().err
