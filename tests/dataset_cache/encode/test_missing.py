"""Samples that vanish between two runs are named; folders that vanish are refused, and their entries are kept."""

import shutil
from dataclasses import replace

import pytest

from streamcache.dataset_cache import (
    MISSING,
    UNUSED,
    CacheError,
    FolderSource,
    Masks,
    Settings,
    Transform,
    clean,
    encode,
    make_plan,
    open_cache,
    preview_clean,
)
from streamcache.dataset_cache.format.manifest import read_manifest

from ...support.datasets import write_set
from ...support.fixtures import settle

SMALL = Settings(Transform((16,), step=8), thumbnail=0)
ALLOWED = Settings(Transform((16,), step=8), thumbnail=0, allow_missing=True)


@pytest.fixture
def plan(tmp_path, images, texts):
    def make(*folders, settings=SMALL, **options):
        sources = [FolderSource(tmp_path / folder, **options) for folder in folders or ("set",)]
        return make_plan(sources, image_encoder=images, text_encoder=texts, settings=settings)

    return make


@pytest.fixture
def two_folders(tmp_path, picture, plan):
    """A dataset in set/a and set/disk2, encoded. Returns the cache."""
    for n in range(4):
        picture(f"set/a/{n}.png", size=(16, 16), seed=n, caption=f"a {n}")
        picture(f"set/disk2/{n}.png", size=(16, 16), seed=10 + n, caption=f"b {n}")
    settle()
    encode(plan(), tmp_path / "cache")
    return tmp_path / "cache"


def empty(folder) -> None:
    for file in folder.iterdir():
        file.unlink()


def test_samples_that_are_gone_are_named(two_folders, tmp_path, plan):
    (tmp_path / "set" / "a" / "1.png").unlink()
    (tmp_path / "set" / "disk2" / "3.png").unlink()
    forecast = plan().report(two_folders)
    report = encode(plan(), two_folders)
    assert report.removed == forecast.removed == ["set/a/1.png", "set/disk2/3.png"] == report.to_json()["removed"]
    text = "\n".join(report.lines())
    assert "No longer in the dataset: 2" in text and "\n  set/a/1.png\n" in text
    settle()
    again = encode(plan(), two_folders)
    assert again.unchanged and not again.removed


@pytest.mark.parametrize("how", [empty, shutil.rmtree])
def test_a_folder_that_is_suddenly_empty_or_gone_is_refused(two_folders, tmp_path, plan, images, how):
    before = read_manifest(two_folders)
    images.reset()
    how(tmp_path / "set" / "disk2")
    for attempt in (lambda: encode(plan(), two_folders), lambda: plan().report(two_folders)):
        with pytest.raises(CacheError, match=r"set/disk2: had 4 samples in the last generation .* --allow-missing"):
            attempt()
    assert read_manifest(two_folders) == before and images.count == 0


@pytest.mark.parametrize("content", [b"", b"not an image"])
def test_a_folder_whose_images_are_all_damaged_is_not_missing(two_folders, tmp_path, plan, content):
    for file in (tmp_path / "set" / "disk2").glob("*.png"):
        file.write_bytes(content)
    report = encode(plan(), two_folders)
    assert report.samples == 4 and not report.missing and not report.removed
    assert sorted(problem.source for problem in report.excluded) == [f"set/disk2/{n}.png" for n in range(4)]


@pytest.mark.parametrize("how", [empty, shutil.rmtree])
def test_a_missing_folder_is_refused_before_damaged_entries_are_dropped(two_folders, tmp_path, plan, how):
    for shard in (two_folders / "shards").iterdir():
        shard.chmod(0o644)
        shard.write_bytes(b"\xff" * shard.stat().st_size)
    before = read_manifest(two_folders)
    how(tmp_path / "set" / "disk2")
    with pytest.raises(CacheError, match="set/disk2: had 4 samples"):
        encode(plan(settings=replace(SMALL, check=True)), two_folders)
    assert read_manifest(two_folders) == before
    report = encode(plan(settings=replace(ALLOWED, check=True)), two_folders)
    assert report.missing == {"set/disk2": 4} and len(report.removed) == report.samples == 4
    assert len([sample.realize() for sample in open_cache(two_folders, check=True)]) == 4


def test_a_check_repairs_nothing_if_the_run_is_refused(two_folders, plan):
    for shard in (two_folders / "shards").iterdir():
        shard.unlink()
    before = read_manifest(two_folders)
    with pytest.raises(CacheError, match="is a source of this dataset"):
        encode(plan("cache", settings=replace(SMALL, check=True)), two_folders)
    assert read_manifest(two_folders) == before


def test_a_source_that_is_gone_is_refused_unless_allowed(tmp_path, picture, plan):
    for n in range(3):
        picture(f"a/{n}.png", size=(16, 16), seed=n)
        picture(f"b/{n}.png", size=(16, 16), seed=10 + n)
    settle()
    encode(plan("a", "b"), tmp_path / "cache")
    for vanish in (empty, shutil.rmtree):
        vanish(tmp_path / "b")
        with pytest.raises(CacheError, match="contains no images|is missing"):
            encode(plan("a", "b"), tmp_path / "cache")
        report = encode(plan("a", "b", settings=ALLOWED), tmp_path / "cache")
        assert report.samples == 3 and report.missing == {"b": 3}
        assert any(problem.source == "b" for problem in report.excluded)
    with pytest.raises(CacheError, match="no samples to encode"):
        encode(plan("b", settings=ALLOWED), tmp_path / "other")


def test_entries_of_a_missing_folder_are_kept_until_the_user_removes_them(two_folders, tmp_path, plan, images):
    shutil.move(tmp_path / "set" / "disk2", tmp_path / "aside")
    report = encode(plan(settings=ALLOWED), two_folders)
    assert report.samples == 4 and report.missing == {"set/disk2": 4} and len(report.removed) == 4
    assert "set/disk2: 4 samples, kept in the cache" in "\n".join(report.lines())

    unused, missing = preview_clean(two_folders, [UNUSED, MISSING]).removals
    assert unused.count == 0 and not unused.files and "set/disk2 was missing" in unused.kept
    assert missing.count == 8  # latents and conditionings
    clean(two_folders, [UNUSED])

    settle()
    again = encode(plan(), two_folders)  # allowed before, so it is not asked again
    assert again.unchanged and again.missing == {"set/disk2": 4}
    images.reset()
    shutil.move(tmp_path / "aside", tmp_path / "set" / "disk2")
    back = encode(plan(), two_folders)
    assert images.count == 0 and back.samples == 8 and not back.missing
    assert "missing" not in read_manifest(two_folders).provenance["encode"]


def test_cleaning_what_is_missing_removes_its_entries_and_the_record(two_folders, tmp_path, plan, images):
    shutil.move(tmp_path / "set" / "disk2", tmp_path / "aside")
    encode(plan(settings=ALLOWED), two_folders)
    before = preview_clean(two_folders, [MISSING])
    size = sum(file.stat().st_size for file in two_folders.rglob("*") if file.is_file())
    clean(before)
    left = sum(file.stat().st_size for file in two_folders.rglob("*") if file.is_file())
    assert size - left == before.bytes > 0
    assert len(open_cache(two_folders)) == 4
    assert [removal.count for removal in preview_clean(two_folders, [UNUSED, MISSING]).removals] == [0]
    images.reset()
    shutil.move(tmp_path / "aside", tmp_path / "set" / "disk2")
    assert encode(plan(), two_folders).samples == 8 and images.count == 4


def test_renamed_images_and_folders_are_no_losses(two_folders, tmp_path, plan):
    (tmp_path / "set" / "disk2").rename(tmp_path / "set" / "renamed")
    report = encode(plan(), two_folders)
    assert report.samples == 8 and not report.removed and not report.missing and not report.made
    (tmp_path / "set").rename(tmp_path / "other")
    report = encode(plan("other"), two_folders)
    assert report.samples == 8 and not report.removed and not report.made


def test_a_renamed_folder_at_another_resolution_is_no_loss(two_folders, tmp_path, plan):
    (tmp_path / "set" / "disk2").rename(tmp_path / "set" / "renamed")
    larger = Settings(Transform((32,), step=8), thumbnail=0)  # so that no key is the same
    report = encode(plan(settings=larger), two_folders)
    assert report.samples == 8 and not report.removed and not report.missing


def test_an_image_without_a_mask_does_not_replace_another(tmp_path, picture, plan):
    picture("set/a/0.png", size=(16, 16), seed=1)
    picture("set/b/0.png", size=(16, 16), seed=2)
    encode(plan(masks=Masks("folder")), tmp_path / "cache")
    shutil.rmtree(tmp_path / "set" / "b")
    picture("set/a/1.png", size=(16, 16), seed=3)
    with pytest.raises(CacheError, match="set/b: had 1 sample"):
        encode(plan(masks=Masks("folder")), tmp_path / "cache")


def test_samples_that_another_writer_saved_are_named(tmp_path, picture, plan):
    write_set(tmp_path / "cache", range(3))
    picture("set/new.png", size=(16, 16), seed=1)
    report = encode(plan(), tmp_path / "cache")
    assert report.samples == 1 and report.removed == ["0.png", "1.png", "2.png"] and not report.missing


def test_a_removed_duplicate_is_named_although_its_entry_is_still_used(tmp_path, picture, plan):
    first = picture("set/a.png", size=(16, 16), seed=1)
    shutil.copy(first, tmp_path / "set" / "b.png")
    encode(plan(), tmp_path / "cache")
    (tmp_path / "set" / "b.png").unlink()
    assert encode(plan(), tmp_path / "cache").removed == ["set/b.png"]


def test_a_source_that_the_user_drops_is_not_refused(tmp_path, picture, plan):
    picture("a/0.png", size=(16, 16), seed=1)
    picture("b/0.png", size=(16, 16), seed=2)
    encode(plan("a", "b"), tmp_path / "cache")
    report = encode(plan("a"), tmp_path / "cache")
    assert report.removed == ["b/0.png"] and not report.missing
    assert preview_clean(tmp_path / "cache", [UNUSED]).removals[0].count > 0


def test_a_folder_name_in_another_unicode_form_is_the_same_folder(tmp_path, picture, plan):
    picture("set/\u00e9t\u00e9/0.png", size=(16, 16), seed=1)
    picture("set/other.png", size=(16, 16), seed=2)
    encode(plan(), tmp_path / "cache")
    (tmp_path / "set" / "\u00e9t\u00e9").rename(tmp_path / "set" / "e\u0301te\u0301")
    larger = Settings(Transform((32,), step=8), thumbnail=0)  # so that no key is the same
    report = encode(plan(settings=larger), tmp_path / "cache")
    assert report.samples == 2 and not report.removed and not report.missing


def test_captions_and_masks_that_are_gone_are_named(tmp_path, picture, plan):
    for n in range(3):
        picture(f"set/{n}.png", size=(16, 16), seed=n, caption=f"caption {n}")
        picture(f"set/masks/{n}.png", size=(16, 16), seed=20 + n)
    encode(plan(masks=Masks("folder")), tmp_path / "cache")
    for n in (0, 2):
        (tmp_path / "set" / f"{n}.txt").unlink()
    (tmp_path / "set" / "masks" / "1.png").unlink()
    notes = [note.text for note in encode(plan(masks=Masks("folder")), tmp_path / "cache").notes]
    assert "2 captions are gone since the last generation, of set/0.png, set/2.png" in notes
    assert "1 mask is gone since the last generation, of set/1.png" in notes


@pytest.mark.parametrize("mode", ["folder", "auto"])
@pytest.mark.parametrize("how", [empty, shutil.rmtree])
@pytest.mark.parametrize("resolution", [16, 32])
def test_a_folder_of_masks_that_is_gone_is_refused(tmp_path, picture, plan, mode, how, resolution):
    for n in range(3):
        picture(f"set/{n}.png", size=(16, 16), seed=n)
        picture(f"set/masks/{n}.png", size=(16, 16), seed=20 + n)
    encode(plan(masks=Masks(mode)), tmp_path / "cache")
    before = read_manifest(tmp_path / "cache")
    how(tmp_path / "set" / "masks")
    settings = Settings(Transform((resolution,), step=8), thumbnail=0)
    with pytest.raises(CacheError, match=r"set: 3 images had masks in the last generation .* --allow-missing"):
        encode(plan(settings=settings, masks=Masks(mode)), tmp_path / "cache")
    assert read_manifest(tmp_path / "cache") == before
    report = encode(plan(settings=replace(settings, allow_missing=True), masks=Masks(mode)), tmp_path / "cache")
    assert report.samples == report.unmasked == 3
    assert encode(plan(settings=settings, masks=Masks(mode)), tmp_path / "cache").samples == 3  # not asked again


def test_masks_that_the_user_switches_off_are_not_refused(tmp_path, picture, plan):
    picture("set/0.png", size=(16, 16), seed=1)
    picture("set/masks/0.png", size=(16, 16), seed=2)
    encode(plan(masks=Masks("folder")), tmp_path / "cache")
    shutil.rmtree(tmp_path / "set" / "masks")
    assert encode(plan(), tmp_path / "cache").samples == 1


def test_allowing_missing_folders_changes_no_key(tmp_path, picture, plan, images, texts):
    picture("set/0.png", size=(16, 16), caption="one")
    settle()
    encode(plan(), tmp_path / "cache")
    images.reset()
    texts.reset()
    report = encode(plan(settings=ALLOWED), tmp_path / "cache")
    assert report.unchanged and images.count == texts.count == 0
