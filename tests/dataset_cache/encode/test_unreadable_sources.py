"""A source file that cannot be read now is not damaged: its sample does not leave the dataset silently."""

import errno
import os
import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest

from streamcache.dataset_cache import MISSING, UNUSED, CacheError, Masks, encode, preview_clean
from streamcache.dataset_cache.format.manifest import read_manifest

from ...support.encoders import SMALL
from ...support.fixtures import settle

ALLOWED = replace(SMALL, allow_missing=True)
REFUSED = r"set/a/1\.png: in the last generation, but unusable now: .* --allow-missing .* Nothing was changed"


@contextmanager
def failing(part, number=errno.EIO, times=1 << 30, calls=("open", "scandir")):
    """Opening or listing a place with this part in its name fails, at most `times` times. Gives the places."""
    failed = []

    def patch(name):
        real = getattr(os, name)

        def call(place, *args, **options):
            if part in str(place) and len(failed) < times:
                failed.append(str(place))
                raise OSError(number, os.strerror(number), str(place))
            return real(place, *args, **options)

        return call

    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in calls:
            monkeypatch.setattr(os, name, patch(name))
        yield failed


@pytest.fixture
def two(picture):
    for n in range(3):
        picture(f"set/a/{n}.png", seed=n, caption=f"a {n}")
        picture(f"set/b/{n}.png", seed=10 + n, caption=f"b {n}")
    settle()


def touch(path) -> None:
    """Make the next run read the file again, although it has the same content."""
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    settle()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENFILE, errno.ESTALE])
def test_an_image_that_cannot_be_read_now_is_refused(two, run, plan, tmp_path, images, number):
    run()
    before = read_manifest(tmp_path / "cache")
    touch(tmp_path / "set" / "a" / "1.png")
    images.reset()
    with failing("a/1.png", number) as failed:
        for attempt in (lambda: encode(plan(), tmp_path / "cache"), lambda: plan().report(tmp_path / "cache")):
            with pytest.raises(CacheError, match=REFUSED):
                attempt()
    assert len(failed) > 2, "it was not tried again"
    assert read_manifest(tmp_path / "cache") == before and images.count == 0


def test_reading_is_tried_again(two, run, tmp_path):
    run()
    touch(tmp_path / "set" / "a" / "1.png")
    with failing("a/1.png", times=2) as failed:
        report = run()
    assert len(failed) == 2 and report.samples == 6 and not report.excluded and not report.made


def test_on_a_first_build_it_is_skipped_and_read_by_the_next_run(two, run):
    with failing("a/1.png", errno.EACCES):
        report = run()
    assert report.samples == 5
    assert [(e.source, e.reason) for e in report.excluded] == [("set/a/1.png", "cannot be read: Permission denied")]
    again = run()
    assert again.samples == 6 and not again.excluded and not again.unchanged


def test_entries_of_unreadable_images_are_kept_if_the_user_allows_it(two, run, tmp_path, images):
    run()
    touch(tmp_path / "set" / "a" / "1.png")
    with failing("a/1.png"):
        report = run(settings=ALLOWED)
        assert report.samples == 5 and report.missing == {"set/a": 1}
        again = run()  # allowed before, so it is not asked again
        assert again.samples == 5 and again.missing == {"set/a": 1}
        unused, missing = preview_clean(tmp_path / "cache", [UNUSED, MISSING]).removals
        assert unused.count == 0 and "set/a was missing" in unused.kept and missing.count > 0
    back = run()
    assert back.samples == 6 and not back.missing and images.count == 0
    assert "missing" not in read_manifest(tmp_path / "cache").provenance["encode"]


def test_a_caption_or_mask_that_cannot_be_read_now_is_refused(two, run, tmp_path, picture):
    picture("set/masks/a/1.png", seed=5)
    run(masks=Masks("folder"))
    for name in ("set/a/1.txt", "set/masks/a/1.png"):
        touch(tmp_path / name)
        with failing(name), pytest.raises(CacheError, match=REFUSED):
            run(masks=Masks("folder"))


def test_captions_in_metadata_that_cannot_be_read_now_are_not_replaced_by_empty_ones(tmp_path, picture, run):
    picture("set/deep/0.png", seed=0)
    picture("set/1.png", seed=1, caption="own")
    metadata = tmp_path / "set" / "metadata.jsonl"
    metadata.write_text('{"file_name": "deep/0.png", "text": "far"}')
    settle()
    assert run().samples == 2
    touch(metadata)
    with failing("metadata.jsonl"):
        with pytest.raises(CacheError, match=r"set/deep/0\.png: in the last .* its caption in metadata\.jsonl: cannot"):
            run()
        assert run(to="new").samples == 1


def test_a_folder_that_cannot_be_listed_is_refused(two, run, tmp_path):
    run()
    before = read_manifest(tmp_path / "cache")
    with failing("set/b", calls=("scandir",)):
        with pytest.raises(CacheError, match=r"set/b/0\.png \(and 2 others\): .* the folder cannot be listed"):
            run()
        assert read_manifest(tmp_path / "cache") == before
        report = run(settings=ALLOWED)
    assert report.samples == 3 and report.missing == {"set/b": 3}


def test_images_whose_masks_cannot_be_listed_are_not_trained_without_them(two, run, picture):
    picture("set/masks/a/1.png", seed=5)
    settle()
    with failing("set/masks/a", calls=("scandir",)):
        report = run(masks=Masks("folder"), to="new")
        assert report.samples == 3 and {e.source for e in report.excluded} >= {f"set/a/{n}.png" for n in range(3)}
    run(masks=Masks("folder"))
    refused = pytest.raises(CacheError, match=r"set/a/0\.png \(and 2 others\): .* its mask: the folder .* be listed")
    with failing("set/masks/a", calls=("scandir",)), refused:
        run(masks=Masks("folder"))


def test_a_source_that_cannot_be_listed_is_refused_unless_allowed(two, run, tmp_path):
    run("set/a", "set/b")
    with failing("set/b", calls=("scandir",)):
        with pytest.raises(CacheError, match=r"set/b: cannot be listed: .* Nothing was changed"):
            run("set/a", "set/b")
        report = run("set/a", "set/b", settings=ALLOWED)
    assert report.samples == 3 and report.missing == {"b": 3}


def test_an_image_that_becomes_unreadable_during_the_run_is_refused(two, run, plan, tmp_path):
    run()
    before = read_manifest(tmp_path / "cache")
    larger = replace(SMALL, transform=replace(SMALL.transform, resolutions=(128,)))
    made = plan(settings=larger)
    made.report(tmp_path / "cache")  # scanned and hashed
    with failing("a/1.png") as failed:
        with pytest.raises(CacheError, match=REFUSED):
            encode(made, tmp_path / "cache")
        assert len(failed) > 1, "it was not tried again"
        assert read_manifest(tmp_path / "cache") == before
        allowed = plan(settings=replace(larger, allow_missing=True))
        report = encode(allowed, tmp_path / "cache")
        assert report.samples == 5 and report.missing == {"set/a": 1}
    assert run(settings=larger).samples == 6


def test_reading_during_the_run_is_tried_again(two, plan, tmp_path, images):
    made = plan()
    len(made)  # scanned, not read
    with failing("a/1.png", times=1) as failed:
        report = encode(made, tmp_path / "cache")
    assert len(failed) == 1 and report.samples == 6 and not report.excluded and images.count == 6


def test_a_mask_that_fails_for_a_moment_does_not_cost_its_twin(run, plan, tmp_path, picture):
    first = picture("set/0.png", seed=1)
    shutil.copy(first, tmp_path / "set" / "1.png")  # shares the latent
    for n in (0, 1):
        picture(f"set/masks/{n}.png", seed=10 + n)
    settle()
    made = plan(masks=Masks("folder"))
    len(made)
    with failing("masks/0.png", times=1):
        report = encode(made, tmp_path / "cache")
    assert report.samples == 2 and not report.excluded


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_to_a_disk_that_is_not_mounted_are_refused(tmp_path, picture, run):
    for n in range(3):
        picture(f"disk/{n}.png", seed=n, caption=f"caption {n}")
    (tmp_path / "set").mkdir()
    picture("set/own.png", seed=9)
    for file in (tmp_path / "disk").iterdir():
        (tmp_path / "set" / file.name).symlink_to(file)
    settle()
    assert run().samples == 4
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    with pytest.raises(CacheError, match=r"set/0\.png \(and 2 others\): .* No such file"):
        run()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_an_image_whose_caption_is_a_dangling_link_is_not_trained_without_it(tmp_path, picture, run):
    picture("set/0.png", seed=1)
    picture("set/1.png", seed=2, caption="one")
    (tmp_path / "set" / "0.txt").symlink_to(tmp_path / "gone.txt")
    report = run()
    assert report.samples == 1 and report.excluded[0].source == "set/0.png"
    assert "its caption 0.txt: cannot be read" in report.excluded[0].reason


def test_too_little_memory_is_not_remembered_as_damage(two, run, tmp_path, monkeypatch):
    from PIL import Image

    def fail(self):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "convert", fail)
        patch.setattr(Image.Image, "load", fail)
        with pytest.raises(CacheError, match="not enough memory"):
            run()
    assert run().samples == 6


def test_an_image_skipped_during_a_first_build_is_read_by_the_next_run(two, run, plan, tmp_path):
    made = plan()
    len(made)  # scanned, not read
    with failing("a/1.png"):
        report = encode(made, tmp_path / "cache")
    assert report.samples == 5 and report.excluded[0].source == "set/a/1.png"
    again = run()
    assert again.samples == 6 and not again.excluded and not again.unchanged
