"""A run that looks at what changed gives what a run that looks at everything gives."""

import random
import shutil
import sys
from pathlib import Path

import pytest

from streamcache.dataset_cache import open_cache, read_manifest
from streamcache.dataset_cache.upkeep import verify

from ...support.datasets import content
from ...support.fixtures import settle


@pytest.fixture
def looked(monkeypatch) -> list[bool]:
    """For each run that found changes: whether it looked at them only."""
    found: list[bool] = []
    encoding = sys.modules["streamcache.dataset_cache.encode.encode"]  # its door has a function of this name
    real = encoding.encode_changes

    def watch(*args):
        report = real(*args)
        found.append(report is not None)
        return report

    monkeypatch.setattr(encoding, "encode_changes", watch)
    return found


@pytest.fixture
def dozen(picture):
    for n in range(12):
        picture(f"set/{n:02}.png", size=(64, 48), seed=n, caption=f"caption {n % 5}")
    settle()


def facts(report) -> dict:
    """What a report says of the dataset."""
    names = ("samples", "buckets", "epoch", "uncaptioned", "unmasked", "excluded", "cut", "missing")
    plain = {name: getattr(report, name) for name in names}
    total = {n: report.reused.get(n, 0) + report.encoded.get(n, 0) for n in {*report.reused, *report.encoded}}
    return {**plain, "entries": {name: count for name, count in total.items() if count}}


def test_f2_one_changed_file_is_the_only_one_that_is_read(dozen, run, picture, images, texts, looked):
    run("set")
    settle()
    picture("set/05.png", size=(64, 48), seed=500)
    settle()
    report = run("set")
    assert looked == [True] and (images.count, texts.count) == (1, 0)
    assert (report.counts.opened, report.samples, report.reused["latent"]) == (2, 12, 11)
    assert [(made.source, made.field, made.why) for made in report.made] == [
        ("set/05.png", made.field, "content changed") for made in report.made
    ]
    again = run("set")
    assert again.unchanged and facts(again) == facts(report) and looked == [True]


@pytest.mark.parametrize("seed", range(4))
def test_f2_any_few_changes_give_what_a_whole_run_gives(dozen, run, picture, tmp_path, looked, seed):
    """Pictures, captions, sizes, touched files, captions that become empty: alone and together."""
    draw = random.Random(seed)
    run("set")
    for _ in range(4):
        settle()
        for n in draw.sample(range(12), draw.choice((1, 1, 3))):
            what, text = draw.choice(("picture", "size", "caption", "empty", "touch")), tmp_path / f"set/{n:02}.txt"
            if what == "picture":
                picture(f"set/{n:02}.png", size=(64, 48), seed=draw.randrange(1000))
            elif what == "size":
                picture(f"set/{n:02}.png", size=draw.choice(((48, 64), (64, 64))), seed=draw.randrange(1000))
            elif what == "touch":
                text.write_text(text.read_text())
            else:
                text.write_text("" if what == "empty" else f"caption {draw.randrange(9)}")
        settle()
        report = run("set")
        before = len(looked)
        whole = run("set", to=f"other{len(looked)}{draw.randrange(1 << 30)}")
        assert looked and all(looked) and len(looked) == before
        assert facts(report) == facts(whole)
        assert content(tmp_path / "cache") == content(Path(whole.path))
        assert list(verify(tmp_path / "cache")) == []
        assert read_manifest(tmp_path / "cache").counts["samples"] == 12


def test_f2_a_run_over_everything_finds_the_samples_of_a_spliced_one_unchanged(dozen, run, picture, tmp_path, looked):
    run("set")
    settle()
    picture("set/03.png", size=(64, 48), seed=300)
    settle()
    generation = run("set").generation
    shutil.copytree(tmp_path / "set", tmp_path / "copy")
    picture("set/new.png", size=(64, 48), seed=301)
    settle()
    run("set")
    (tmp_path / "set" / "new.png").unlink()
    settle()
    report = run("set")
    assert looked == [True] and report.samples == 12
    assert open_cache(tmp_path / "cache").generation == report.generation != generation


@pytest.mark.parametrize("change", ["new", "gone", "renamed", "damaged", "metadata", "mask", "setting"])
def test_f2_what_is_not_simple_is_left_to_a_whole_run(dozen, run, picture, tmp_path, looked, change):
    run("set")
    settle()
    folder, options = tmp_path / "set", {}
    if change == "new":
        picture("set/99.png", size=(64, 48), seed=99)
    elif change == "gone":
        (folder / "01.png").unlink()
    elif change == "renamed":
        (folder / "01.png").rename(folder / "98.png")
    elif change == "damaged":
        (folder / "01.png").write_bytes(b"no image")
    elif change == "metadata":
        (folder / "metadata.jsonl").write_text('{"file_name": "01.png", "text": "other"}\n')
    elif change == "mask":
        picture("set/01-masklabel.png", size=(64, 48), seed=1)
    else:
        options["repeats"] = 2
    settle()
    report = run("set", **options)
    whole = run("set", to="other", **options)
    assert looked == [] and facts(report) == facts(whole)
    assert content(tmp_path / "cache") == content(tmp_path / "other")


def test_f2_a_preview_between_two_runs_hides_nothing(dozen, run, plan, picture, tmp_path, looked, images):
    run("set")
    settle()
    picture("set/07.png", size=(64, 48), seed=700)
    settle()
    assert plan("set").report(tmp_path / "cache").encoded["latent"] == 1
    run("set")
    assert images.count == 1 and looked == [True]


def test_f2_many_changes_are_left_to_a_whole_run(dozen, run, picture, looked, monkeypatch):
    from streamcache.dataset_cache.encode import changes

    monkeypatch.setattr(changes, "MOST_CHANGES", 2)
    run("set")
    settle()
    for n in range(3):
        picture(f"set/{n:02}.png", size=(64, 48), seed=80 + n)
    settle()
    assert run("set").encoded["latent"] == 3 and looked == []
