"""`streamcache encode`, on real folders."""

import json

import pytest
import torch

from streamcache.cli.main import build_parser
from streamcache.dataset_cache import ENCODE_SETTINGS, CacheWriter, open_cache

from ..support.commands import run


def told(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def test_encode_encodes_once(encoding, tmp_path, capsys):
    assert run(*encoding) == 0
    assert "Encoded 15 entries" in capsys.readouterr().out  # 6 latents, 6 thumbnails, 2 captions and the empty one
    assert run(*encoding) == 0
    assert "Unchanged: 6 samples" in capsys.readouterr().out
    assert run(*encoding, "--json") == 0
    facts = told(capsys)
    assert facts["unchanged"] and facts["reused"] == {"latent": 6, "conditioning": 3, "thumbnail": 6}


def test_models_are_never_chosen_silently(encoding, tmp_path, capsys):
    assert run(*(argument for argument in encoding if argument != "--reference")) == 2
    error = capsys.readouterr().err
    assert "--comfyui FOLDER" in error and "--reference" in error and not (tmp_path / "cache").exists()


def test_a_dry_run_reports_and_changes_nothing(encoding, tmp_path, capsys):
    assert run(*encoding, "--dry-run") == 0
    assert "latent: 6 to encode (6 new)" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()
    assert run(*encoding, "--dry-run", "--json") == 0
    assert told(capsys)["encoded"] == {"latent": 6, "conditioning": 3, "thumbnail": 6}  # with the empty caption


def test_strict_reports_exclusions_in_the_exit_code(encoding, tmp_path, capsys):
    (tmp_path / "set" / "bad.png").write_bytes(b"")
    assert run(*encoding) == 0
    assert "set/bad.png: the file is empty" in capsys.readouterr().out
    assert run(*encoding, "--strict") == 3


def test_a_missing_source_is_one_line_and_code_1(tmp_path, capsys):
    assert run("encode", tmp_path / "gone", "--reference", "--to", tmp_path / "cache") == 1
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "cache").exists()


def test_every_flag_reaches_the_plan(encoding, tmp_path, picture, capsys):
    picture("class/a.png", size=(64, 64))
    flags = "--flip --no-upscale --crop random --seed 3 --masks auto --trigger sks --shuffles 2 --keep-tags 1"
    sets = ["--repeats", 3, "--weight", 0.5, "--set", "mine", "--class-source", tmp_path / "class"]
    assert (
        run(*encoding, *flags.split(), *sets, "--class-prompt", "a dog", "--class-weight", 0.25, "--thumbnail", 0) == 0
    )
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


def test_b6_names_of_a_file_are_those_of_the_flags_and_old_ones_still_load(tmp_path, picture):
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


def test_flags_win_over_the_file_under_any_name(encoding, tmp_path):
    (tmp_path / "sets.toml").write_text("thumbnail = 64\n[transform]\nresolutions = [96]\nseed = 1")
    assert run(*encoding, "--config", tmp_path / "sets.toml", "--seed", 5, "--thumbnail", 0) == 0
    made = open_cache(tmp_path / "cache").provenance["encode"]
    assert made["sources"][0]["transform"]["resolutions"] == [64] and made["sources"][0]["transform"]["seed"] == 5
    assert made["settings"]["thumbnail"] == 0


def test_b6_every_setting_has_a_flag_under_its_name_and_its_old_ones():
    help_text = build_parser()._subparsers._group_actions[0].choices["encode"].complete().format_help()
    for setting in ENCODE_SETTINGS.values():
        for name in (setting.name, *setting.old_names):
            assert f"--{name.replace('_', '-')}" in help_text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("repeats_ = 2", "repeats_ is not a setting here; expected one of resolution, resolutions, step"),
        ("resolutoin = [64]", 'resolutoin is not a setting here; did you mean "resolution"?'),
        ("resolution = [64]\n[transform]\nresolutions = [64]", "resolutions is set twice"),
        ("[[source]]\nset = 'a'", "path is missing"),
        ("[[source]]\npath = 'a'\ncaption = 'b'", "caption is not a setting here"),
        ("[transform]\nresolutions = 64", "resolution = 64 (int): expected a list"),
        ("transform = 3", "transform = 3: expected a table [transform] of settings, such as resolution"),
        ("[[source]]\npath = 'a'\ncaptions = 'b'", "captions = 'b': expected a table [captions]"),
        ("[[source]]\npath = 'a'\nrepeats = 1.5", "[[source]] 1: repeats = 1.5 (float): expected a whole number"),
        ("source = 3", "expected tables"),
        ("source = [3]", "expected a table"),
        ("= nonsense", "not valid TOML"),
    ],
)
def test_an_invalid_file_is_reported_by_name(text, word, tmp_path, capsys):
    (tmp_path / "sets.toml").write_text(text)
    assert run("encode", "--reference", "--config", tmp_path / "sets.toml", "--to", tmp_path / "cache") == 2
    error = capsys.readouterr().err
    assert word in error and "sets.toml: " in error


def test_trust_and_check_are_flags(encoding, tmp_path, capsys):
    run(*encoding)
    assert run(*encoding, "--trust", "--json") == 0
    capsys.readouterr()
    assert run(*encoding, "--check") == 0
    assert "0 encoded" in capsys.readouterr().out


def test_encode_reports_missing_captions_and_masks_and_the_size_of_an_epoch(encoding, tmp_path, picture, capsys):
    picture("set/plain.png", size=(96, 96))
    picture("set/0-masklabel.png", size=(96, 64))
    assert run(*encoding, "--masks", "file", "--repeats", 3) == 0
    text = capsys.readouterr().out
    for words in ("21 samples per epoch", "1 sample without a caption", "6 samples without a mask"):
        assert words in text
    assert run(*encoding, "--masks", "file", "--repeats", 3) == 0  # the same from memory
    assert "6 samples without a mask" in capsys.readouterr().out


def test_encode_names_the_few_entries_that_changed(encoding, tmp_path, capsys):
    run(*encoding)
    assert "set/3.png" not in capsys.readouterr().out
    (tmp_path / "set" / "3.txt").write_text("another caption")
    assert run(*encoding) == 0
    assert "  set/3.png: conditioning, content changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--threads", -3], "threads = -3: expected a whole number of at least 0"),
        (["--resolution", 99999999], "resolution = 99999999: expected a whole number of at most 16,384"),
        (["--shuffles", 10**8], "tag_shuffles = 100000000: expected a whole number of at least 0, at most 1,000"),
    ],
)
def test_a_number_out_of_range_is_wrong_usage(encoding, flags, words, capsys):
    assert run(*encoding, *flags) == 2
    error = capsys.readouterr().err
    assert words in error and error.splitlines()[1:] == ['See "streamcache encode --help".']


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
def test_a_value_of_the_wrong_type_is_wrong_usage(encoding, text, words, tmp_path, capsys):
    (tmp_path / "sets.toml").write_text(text)
    assert run(*encoding[:5], "--config", tmp_path / "sets.toml") == 2
    error = capsys.readouterr().err
    assert words in error and "sets.toml: " in error and error.count("\n") == 2


def test_whole_numbers_are_accepted_as_fractions_in_a_file(encoding, tmp_path):
    (tmp_path / "sets.toml").write_text("[transform]\nmax_aspect = 2")
    assert run(*encoding, "--config", tmp_path / "sets.toml", "--dry-run") == 0


def test_a_file_is_refused_as_a_source(encoding, tmp_path, capsys):
    assert run("encode", "--reference", tmp_path / "set" / "0.png", "--to", tmp_path / "cache") == 1
    assert "is a file, expected a folder of images" in capsys.readouterr().err


def test_a_broken_image_is_reported_once_for_all_resolutions(encoding, tmp_path, capsys):
    whole = (tmp_path / "set" / "0.png").read_bytes()
    (tmp_path / "set" / "broken.png").write_bytes(whole[: len(whole) // 2])
    assert run(*encoding[:3], tmp_path / "two", "--reference", "--resolution", 64, 96, "--step", 8, "--json") == 0
    assert len(told(capsys)["excluded"]) == 1


def test_c9_repeats_of_zero_are_refused_with_the_range(encoding, capsys):
    assert run(*encoding, "--repeats", 0) == 2
    assert "repeats = 0: expected a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [[], ["--dry-run"]])
def test_c9_class_images_without_captions_need_a_prompt(encoding, tmp_path, picture, capsys, mode):
    picture("class/a.png", size=(64, 64), caption="a small dog")
    picture("class/b.png", size=(64, 64), seed=1)
    assert run(*encoding, "--class-source", tmp_path / "class", *mode) == 1
    error = capsys.readouterr().err
    assert "class/b.png: no caption, which class images need" in error and "--class-prompt" in error
    assert not (tmp_path / "cache").exists()


def test_c9_class_images_may_have_caption_files(encoding, tmp_path, picture, capsys):
    for n in range(2):
        picture(f"class/{n}.png", size=(64, 64), seed=n, caption=f"dog {n}")
    command = (*encoding, "--class-source", tmp_path / "class")
    assert run(*command) == 0
    cache = open_cache(tmp_path / "cache")
    assert [list(sample.captions) for sample in cache if sample.set == "class"] == [["dog 0"], ["dog 1"]]
    assert cache.sets["class"]["prior"]


def test_a_dry_run_counts_what_a_run_encodes_and_reuses(encoding, tmp_path, capsys):
    for _ in range(2):  # into an empty cache, then into a complete one
        run(*encoding, "--dry-run", "--json")
        planned = told(capsys)
        run(*encoding, "--json")
        done = told(capsys)
        for kind in ("encoded", "reused"):
            assert planned[kind] == {field: count for field, count in done[kind].items() if count}


def test_f9_the_captions_of_a_cache_are_encoded_without_its_images(encoding, tmp_path, capsys):
    with CacheWriter(tmp_path / "mine") as writer:
        for i in range(4):
            writer.add({"samples": torch.zeros(1, 4, 8, 8)}, caption=f"caption {i % 2}", source=f"{i}.png")
    command = ("encode", "--captions-of", tmp_path / "mine", "--reference")
    assert run(*command, "--text-batch-size", 2) == 0
    out = capsys.readouterr().out
    assert "Encoded 3 captions, 0 reused" in out and "4 samples of 4 got conditionings" in out
    assert run(*encoding) == 0
    with open_cache(tmp_path / "mine") as cache, open_cache(tmp_path / "cache") as encoded:
        assert cache.keys(1)["conditioning"] == encoded.keys(1)["conditioning"]
    capsys.readouterr()
    assert run(*command, "--json") == 0
    assert told(capsys)["completed"] == 0


def test_f9_what_the_captions_of_a_cache_cannot_use_is_refused(tmp_path, capsys):
    command = ("encode", "--captions-of", tmp_path / "mine", "--reference")
    for more in (["--to", "other"], [tmp_path], ["--dry-run"], ["--flip"], ["--trigger", "sks"], ["--seed", 1]):
        assert run(*command, *more) == 2
        assert "--captions-of" in capsys.readouterr().err
    assert run(*command) == 1 and "mine" in capsys.readouterr().err
    assert run("encode", tmp_path, "--reference") == 2 and "--to" in capsys.readouterr().err
