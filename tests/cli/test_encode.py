"""`streamcache encode` and `streamcache info`, on real folders."""

import argparse
import json
from pathlib import Path

import pytest
from PIL import Image

from streamcache.cli.encode import add_parser
from streamcache.cli.main import main
from streamcache.dataset_cache import ENCODE_SETTINGS, check_setting, open_cache, parse_setting
from streamcache.reference.encoders import ReferenceImageEncoder

from ..support.fixtures import settle


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture
def small(tmp_path, picture):
    for n in range(6):
        picture(f"set/{n}.png", size=(96, 96 if n % 2 else 64), seed=n, caption=f"caption {n % 2}")
    settle()
    return ["encode", tmp_path / "set", "--to", tmp_path / "cache", "--reference", "--resolution", 64, "--step", 8]


def told(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def test_encode_encodes_once(small, tmp_path, capsys):
    assert run(*small) == 0
    assert "Encoded 15 entries" in capsys.readouterr().out  # 6 latents, 6 thumbnails, 2 captions and the empty one
    assert run(*small) == 0
    assert "Unchanged: 6 samples" in capsys.readouterr().out
    assert run(*small, "--json") == 0
    facts = told(capsys)
    assert facts["unchanged"] and facts["reused"] == {"latent": 6, "conditioning": 7, "thumbnail": 6}


def test_models_are_never_chosen_silently(small, tmp_path, capsys):
    assert run(*(argument for argument in small if argument != "--reference")) == 1
    error = capsys.readouterr().err
    assert "--comfyui FOLDER" in error and "--reference" in error and not (tmp_path / "cache").exists()


def test_a_dry_run_reports_and_changes_nothing(small, tmp_path, capsys):
    assert run(*small, "--dry-run") == 0
    assert "latent: 6 to encode (6 new)" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()
    assert run(*small, "--dry-run", "--json") == 0
    assert told(capsys)["encoded"] == {"latent": 6, "conditioning": 2, "thumbnail": 6}


def test_strict_reports_exclusions_in_the_exit_code(small, tmp_path, capsys):
    (tmp_path / "set" / "bad.png").write_bytes(b"")
    assert run(*small) == 0
    assert "set/bad.png: the file is empty" in capsys.readouterr().out
    assert run(*small, "--strict") == 3


def test_a_missing_source_is_one_line_and_code_1(tmp_path, capsys):
    assert run("encode", tmp_path / "gone", "--reference", "--to", tmp_path / "cache") == 1
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "cache").exists()


def test_every_flag_reaches_the_plan(small, tmp_path, picture, capsys):
    picture("class/a.png", size=(64, 64))
    flags = "--flip --no-upscale --crop random --seed 3 --masks auto --trigger sks --shuffles 2 --keep-tags 1"
    sets = ["--repeats", 3, "--weight", 0.5, "--set", "mine", "--class-source", tmp_path / "class"]
    assert run(*small, *flags.split(), *sets, "--class-prompt", "a dog", "--class-weight", 0.25, "--thumbnail", 0) == 0
    cache = open_cache(tmp_path / "cache")
    assert set(cache.fields) == {"latent", "conditioning", "mask"} and set(cache.sets) == {"mine", "class"}
    sample = cache[0]
    assert sample.caption == "sks, caption 0" and (sample.repeats, sample.weight) == (3, 0.5)
    assert cache.variants("latent").tolist() == [2] * 7
    assert cache[6].caption == "a dog" and cache[6].weight == 0.25 and cache.sets["class"]["prior"]


def test_sets_come_from_a_toml_file(tmp_path, picture, capsys):
    picture("cats/a.png", size=(64, 64), caption="a, b")
    picture("dogs/b.png", size=(64, 64), caption="c")
    (tmp_path / "sets.toml").write_text(
        """
        batch_size = 2
        thumbnail = 0
        [transform]
        resolutions = [64]
        step = 8
        [[source]]
        path = "cats"
        repeats = 2
        [source.captions]
        shuffles = 2
        [[source]]
        path = "dogs"
        set = "dogs"
        [source.transform]
        resolutions = [32]
        step = 8
        """
    )
    assert run("encode", "--reference", "--config", tmp_path / "sets.toml", "--to", tmp_path / "cache") == 0
    shapes = {s.source: s.latent["samples"].shape[-1] for s in open_cache(tmp_path / "cache")}
    assert shapes == {"cats/a.png": 8, "dogs/b.png": 4}


def test_names_of_a_file_are_those_of_the_flags_and_old_ones_still_load(tmp_path, picture):
    picture("set/a.png", size=(64, 64), caption="a, b, c")
    old = """
        [transform]
        resolutions = [64]
        step = 8
        seed = 3
        [[source]]
        path = "set"
        captions = {shuffles = 2, keep_tags = 1, seed = 3, prefix = "x "}
        masks = {mode = "alpha"}
        """
    new = """
        resolution = [64]
        step = 8
        crop_seed = 3
        [[source]]
        path = "set"
        tag_shuffles = 2
        keep_tags = 1
        caption_seed = 3
        caption_prefix = "x "
        masks = "alpha"
        """
    flags = ["--resolution", 64, "--step", 8, "--seed", 3, "--shuffles", 2, "--keep-tags", 1, "--masks", "alpha"]
    for name, text in (("old", old), ("new", new)):
        (tmp_path / f"{name}.toml").write_text(text)
        run("encode", "--reference", "--config", tmp_path / f"{name}.toml", "--to", tmp_path / name)
    run("encode", tmp_path / "set", "--reference", *flags, "--prefix", "x ", "--to", tmp_path / "flags")
    made = [open_cache(tmp_path / name).provenance["encode"] for name in ("old", "new", "flags")]
    assert made[0] == made[1] == made[2]
    assert made[0]["sources"][0]["captions"]["shuffles"] == 2


def test_flags_win_over_the_file_under_any_name(small, tmp_path):
    (tmp_path / "sets.toml").write_text("thumbnail = 64\n[transform]\nresolutions = [96]\nseed = 1")
    assert run(*small, "--config", tmp_path / "sets.toml", "--seed", 5, "--thumbnail", 0) == 0
    made = open_cache(tmp_path / "cache").provenance["encode"]
    assert made["sources"][0]["transform"]["resolutions"] == [64] and made["sources"][0]["transform"]["seed"] == 5
    assert made["settings"]["thumbnail"] == 0


def test_every_setting_has_a_flag_under_its_name_and_its_old_ones():
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    help_text = parser._subparsers._group_actions[0].choices["encode"].format_help()
    for setting in ENCODE_SETTINGS.values():
        for name in (setting.name, *setting.old_names):
            assert f"--{name.replace('_', '-')}" in help_text


def test_the_documentation_has_every_setting_with_its_default_and_meaning():
    text = (Path(__file__).resolve().parents[2] / "docs" / "encoding.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert list(rows) == list(ENCODE_SETTINGS)
    for name, setting in ENCODE_SETTINGS.items():
        assert setting.limits.about in rows[name]
        shown = rows[name].split("|")[2].strip()
        assert not shown or check_setting(setting, parse_setting(setting, shown)) == setting.default


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("repeats_ = 2", "repeats_ is not a setting here; expected one of resolution, resolutions, step"),
        ("resolutoin = [64]", 'resolutoin is not a setting here; did you mean "resolution"?'),
        ("resolution = [64]\n[transform]\nresolutions = [64]", "resolutions is set twice"),
        ("[[source]]\nset = 'a'", "path is missing"),
        ("[[source]]\npath = 'a'\ncaption = 'b'", "caption is not a setting here"),
        ("[transform]\nresolutions = 64", "resolution = 64 (int): expected a list"),
        ("transform = 3", "transform is not a setting here"),
        ("source = 3", "expected tables"),
        ("source = [3]", "expected a table"),
        ("= nonsense", "not valid TOML"),
    ],
)
def test_an_invalid_file_is_reported_by_name(text, word, tmp_path, capsys):
    (tmp_path / "sets.toml").write_text(text)
    assert run("encode", "--reference", "--config", tmp_path / "sets.toml", "--to", tmp_path / "cache") == 1
    assert word in capsys.readouterr().err


def test_trust_and_check_are_flags(small, tmp_path, capsys):
    run(*small)
    assert run(*small, "--trust", "--json") == 0
    capsys.readouterr()
    assert run(*small, "--check") == 0
    assert "0 encoded" in capsys.readouterr().out


def test_info_shows_buckets_captions_sharing_and_provenance(small, tmp_path, capsys):
    (tmp_path / "set" / "bad.png").write_bytes(b"")
    run(*small)
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


def test_encode_reports_missing_captions_and_masks_and_the_size_of_an_epoch(small, tmp_path, picture, capsys):
    picture("set/plain.png", size=(96, 96))
    picture("set/0-masklabel.png", size=(96, 64))
    assert run(*small, "--masks", "file", "--repeats", 3) == 0
    text = capsys.readouterr().out
    for words in ("21 samples per epoch", "1 sample has no caption", "6 samples have no mask"):
        assert words in text
    assert run(*small, "--masks", "file", "--repeats", 3) == 0  # the same from memory
    assert "6 samples have no mask" in capsys.readouterr().out


def test_encode_names_the_few_entries_that_changed(small, tmp_path, capsys):
    run(*small)
    assert "set/3.png" not in capsys.readouterr().out
    (tmp_path / "set" / "3.txt").write_text("another caption")
    assert run(*small) == 0
    assert "  set/3.png: conditioning, content changed" in capsys.readouterr().out


def test_info_shows_pixels_repeats_and_missing_shards(small, tmp_path, capsys):
    run(*small, "--repeats", 2)
    capsys.readouterr()
    assert run("info", tmp_path / "cache") == 0
    text = capsys.readouterr().out
    assert "6 samples (12 per epoch, with repeats)" in text and "64×64 (45×8×8)" in text and "DAMAGED" not in text
    shard = next((tmp_path / "cache" / "shards").iterdir())
    shard.unlink()
    assert run("info", tmp_path / "cache") == 0
    assert f"DAMAGED: 1 shard missing or truncated ({shard.name})" in capsys.readouterr().out


def test_info_shows_the_names_of_encoders(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ReferenceImageEncoder, "name", "my_vae", raising=False)
    run(*small)
    assert open_cache(tmp_path / "cache").provenance["encode"]["encoder_names"] == {"image": "my_vae"}
    capsys.readouterr()
    run("info", tmp_path / "cache")
    text = capsys.readouterr().out
    assert "Image encoder: my_vae (streamcache-reference-vae" in text
    assert "Text encoder: streamcache-reference-text" in text


def test_a_contact_sheet_without_thumbnails_is_refused(small, tmp_path, capsys):
    run(*small, "--thumbnail", 0)
    assert run("info", tmp_path / "cache", "--contact-sheet", tmp_path / "x.png") == 1
    assert "has no thumbnails" in capsys.readouterr().err


def test_info_on_an_empty_folder_is_refused(tmp_path, capsys):
    assert run("info", tmp_path) == 1
    assert "not a StreamCache dataset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--threads", -3], "threads = -3: expected a whole number of at least 0"),
        (["--resolution", 99999999], "resolution = 99999999: expected a whole number of at most 16,384"),
        (["--shuffles", 10**8], "tag_shuffles = 100000000: expected a whole number of at least 0, at most 1,000"),
    ],
)
def test_a_number_out_of_range_is_one_line(small, flags, words, capsys):
    assert run(*small, *flags) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('threads = "x"', "threads = 'x' (str): expected a whole number"),
        ('flip = "yes"', "flip = 'yes' (str): expected true or false"),
        ('background = "pink"', "background = 'pink': expected white, grey, black, or [red, green, blue]"),
        ('[transform]\nresolutions = "big"', "resolution = 'big' (str): expected a list"),
        ('[transform]\nresolutions = ["big"]', "resolution = 'big' (str): expected a whole number"),
        ("[[source]]\npath = 3", "path is missing"),
        ('[[source]]\npath = "."\nprompt = 3', "prompt = 3 (int): expected text"),
        ('[[source]]\npath = "."\nrepeats = "x"', "repeats = 'x' (str): expected a whole number"),
    ],
)
def test_a_value_of_the_wrong_type_is_one_line(small, text, words, tmp_path, capsys):
    (tmp_path / "sets.toml").write_text(text)
    assert run(*small[:5], "--config", tmp_path / "sets.toml") == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_whole_numbers_are_accepted_as_fractions_in_a_file(small, tmp_path):
    (tmp_path / "sets.toml").write_text("[transform]\nmax_aspect = 2")
    assert run(*small, "--config", tmp_path / "sets.toml", "--dry-run") == 0


def test_a_file_is_refused_as_a_source(small, tmp_path, capsys):
    assert run("encode", "--reference", tmp_path / "set" / "0.png", "--to", tmp_path / "cache") == 1
    assert "is a file, expected a folder of images" in capsys.readouterr().err


def test_a_broken_image_is_reported_once_for_all_resolutions(small, tmp_path, capsys):
    whole = (tmp_path / "set" / "0.png").read_bytes()
    (tmp_path / "set" / "broken.png").write_bytes(whole[: len(whole) // 2])
    assert run(*small[:3], tmp_path / "two", "--reference", "--resolution", 64, 96, "--step", 8, "--json") == 0
    assert len(told(capsys)["excluded"]) == 1


def test_an_unknown_format_of_the_contact_sheet_is_one_line(small, tmp_path, capsys):
    assert run(*small) == 0
    capsys.readouterr()
    assert run("info", tmp_path / "cache", "--contact-sheet", tmp_path / "sheet.foo") == 1
    error = capsys.readouterr().err
    assert "cannot be written" in error and error.count("\n") == 1
