"""`streamcache info`: what it prints and what its JSON has."""

import json
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.reference.encoders import ReferenceImageEncoder

from ..support.commands import run, run_json
from ..support.datasets import core_dataset, put_sample, write_set


def test_info_shows_what_a_cache_takes(path: Path, capsys: pytest.CaptureFixture):
    code, facts = run_json(capsys, "info", path)
    assert (code, facts["samples"], facts["unused"]) == (0, 3, 6)
    assert facts["usage"]["fields"] == {"conditioning": 5 * 224, "latent": 1024 + 2048 + 1024, "thumbnail": 3 * 75}
    assert facts["usage"]["unused"] == 2 * (224 + 75) + 1024 + 2048
    assert (facts["usage"]["readers"], facts["usage"]["writer"]) == ([], None)
    assert run("info", path) == 0
    text = capsys.readouterr().out
    for word in ("3 samples", "4×8×8", "conditioning 1.12 KB", "Set main", "Readers now: none", "vae: ä"):
        assert word in text


def test_info_names_readers_writers_and_older_generations(path: Path, capsys: pytest.CaptureFixture):
    reader = open_cache(path)
    write_set(path, range(2))
    writer = CacheWriter(path, append=True)
    code, facts = run_json(capsys, "info", path)
    assert code == 0 and len(facts["usage"]["readers"]) == 1 and str(os.getpid()) in facts["usage"]["writer"]
    assert facts["usage"]["older_generations"] == 1
    writer.close()
    assert run("info", path) == 0 and "1 older generation" in capsys.readouterr().out
    del reader


def test_info_of_an_empty_and_of_a_plain_cache(tmp_path: Path, capsys: pytest.CaptureFixture):
    CacheWriter(tmp_path / "empty").__exit__(None, None, None)
    with CacheWriter(tmp_path / "plain") as writer:
        writer.add(extra={"x": 1})
        writer.add(latent={"samples": torch.zeros(1, 4, 2, 2)})
    for name, samples in (("empty", 0), ("plain", 2)):
        code, facts = run_json(capsys, "info", tmp_path / name)
        assert (code, facts["samples"]) == (0, samples)
        assert run("info", tmp_path / name) == 0
        capsys.readouterr()


def test_info_of_an_unfinished_save_reports_how_much_is_ready(tmp_path: Path, capsys: pytest.CaptureFixture):
    writer = CacheWriter(tmp_path / "set")
    put_sample(writer, 1)
    writer.flush()
    assert run("info", tmp_path / "set") == 1
    assert "4 entries" in capsys.readouterr().err
    writer.close()


def told(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def test_info_shows_buckets_captions_sharing_and_provenance(encoding, tmp_path, capsys):
    (tmp_path / "set" / "bad.png").write_bytes(b"")
    run(*encoding)
    capsys.readouterr()
    sheet = tmp_path / "sheet.png"
    assert run("info", tmp_path / "cache", "--contact-sheet", sheet) == 0
    text = capsys.readouterr().out
    for words in ("6 samples", "█", "2 of them distinct", "3 × 'caption 0'", "Sharing:", "streamcache-reference-vae"):
        assert words in text
    assert "Source: set → set main, resolution 64" in text and "set/bad.png: the file is empty" in text
    assert min(Image.open(sheet).size) > 200  # two rows of three thumbnails

    assert run("info", tmp_path / "cache", "--json") == 0
    facts = told(capsys)
    assert (
        facts["samples"] == 6 and facts["captions_distinct"] == 2 and sum(b["samples"] for b in facts["buckets"]) == 6
    )
    sizes = {f["name"]: (f["variants"], f["entries"]) for f in facts["fields"]}
    assert sizes["conditioning"] == (6, 2) and sizes["latent"] == (6, 6)
    assert facts["bytes_unshared"] > facts["blob_bytes"]


def test_info_shows_pixels_repeats_and_missing_shards(encoding, tmp_path, capsys):
    run(*encoding, "--repeats", 2)
    capsys.readouterr()
    assert run("info", tmp_path / "cache") == 0
    text = capsys.readouterr().out
    assert "6 samples (12 per epoch, with repeats)" in text and "64×64 (45×8×8)" in text and "DAMAGED" not in text
    shard = next((tmp_path / "cache" / "shards").iterdir())
    shard.unlink()
    assert run("info", tmp_path / "cache") == 0
    assert f"DAMAGED: 1 shard missing or truncated ({shard.name})" in capsys.readouterr().out


def test_info_shows_the_names_of_encoders(encoding, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ReferenceImageEncoder, "name", "my_vae", raising=False)
    run(*encoding)
    assert open_cache(tmp_path / "cache").provenance["encode"]["encoder_names"] == {"image": "my_vae"}
    capsys.readouterr()
    run("info", tmp_path / "cache")
    text = capsys.readouterr().out
    assert "Image encoder: my_vae (streamcache-reference-vae" in text
    assert "Text encoder: streamcache-reference-text" in text


def test_a_contact_sheet_without_thumbnails_is_refused(encoding, tmp_path, capsys):
    run(*encoding, "--thumbnail", 0)
    assert run("info", tmp_path / "cache", "--contact-sheet", tmp_path / "x.png") == 1
    assert "has no thumbnails" in capsys.readouterr().err


def test_info_on_an_empty_folder_is_refused(tmp_path, capsys):
    assert run("info", tmp_path) == 1
    assert "not a StreamCache dataset" in capsys.readouterr().err


def test_an_unknown_format_of_the_contact_sheet_is_wrong_usage(encoding, tmp_path, capsys):
    assert run(*encoding) == 0
    capsys.readouterr()
    assert run("info", tmp_path / "cache", "--contact-sheet", tmp_path / "sheet.foo") == 2
    assert "sheet.foo: not the name of an image file; use one such as sheet.png" in capsys.readouterr().err


def test_a_missing_folder_for_the_contact_sheet_is_named(encoding, tmp_path, capsys):
    assert run(*encoding) == 0
    capsys.readouterr()
    assert run("info", tmp_path / "cache", "--contact-sheet", tmp_path / "gone" / "sheet.png") == 1
    error = capsys.readouterr().err
    assert f"the folder {tmp_path / 'gone'} does not exist; create it first" in error and error.count("\n") == 1


def test_info_shows_how_a_merged_and_a_converted_cache_were_made(encoding, tmp_path, capsys):
    assert run(*encoding) == 0
    old = core_dataset(tmp_path / "old", channels=ReferenceImageEncoder.channels, width=64)
    assert run("convert", old, "--to", tmp_path / "converted") == 0
    assert run("merge", tmp_path / "cache", tmp_path / "converted", "--to", tmp_path / "all") == 0
    capsys.readouterr()
    assert run("info", tmp_path / "all") == 0
    text = capsys.readouterr().out
    assert "Merged from 2 caches\n  cache, generation " in text and "    Source: set → set main, resolution 64" in text
    assert "    Converted from old (1 shard), " in text and "{" not in text


def test_sharing_counts_only_what_samples_need(tmp_path, capsys):
    path = write_set(tmp_path / "set", range(8))
    write_set(path, range(1))  # the other seven are unused now
    code, facts = run_json(capsys, "info", path)
    assert code == 0 and facts["unused"] and facts["bytes_unshared"] == facts["bytes_shared"] < facts["blob_bytes"]
    assert run("info", path) == 0 and "(1.00×)" in capsys.readouterr().out


def test_f10_info_says_what_trimming_saved(tmp_path: Path, capsys: pytest.CaptureFixture):
    with CacheWriter(tmp_path / "set") as writer:
        for i in range(5):
            text = torch.cat([i + torch.arange(512.0).view(1, 8, 64), torch.zeros(1, 92, 64)], 1)
            writer.add(latent={"samples": torch.zeros(1, 4, 8, 8)}, conditioning=[[text, {}]])
    code, facts = run_json(capsys, "info", tmp_path / "set")
    assert (code, facts["bytes_untrimmed"], facts["bytes_trimmed"]) == (0, 5 * 25_600, 5 * (92 * 256 - 8))
    assert run("info", tmp_path / "set") == 0
    assert "Padding of captions: 118 KB of 128 KB not stored (92%)" in capsys.readouterr().out
