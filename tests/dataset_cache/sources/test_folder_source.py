"""A folder as a source: images find their captions, and names of folders count."""

import json

import pytest

from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.captions import Captions
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.masks import Masks
from streamcache.dataset_cache.sources.transforms import Transform


@pytest.fixture
def collected(tmp_path, texts):
    def collect(**options):
        source = FolderSource(tmp_path / "set", **options)
        plan = make_plan(source, text_encoder=texts, settings=Settings(Transform((64,), step=8)))
        return plan

    return collect


def captions(plan) -> dict[str, list[str]]:
    return {plan.source(i): plan.captions(i) for i in range(len(plan))}


def test_the_first_sidecar_that_exists_is_the_caption(tmp_path, picture, collected):
    for name in "abcd":
        picture(f"set/{name}.png")
    folder = tmp_path / "set"
    (folder / "a.txt").write_text("txt")
    (folder / "a.caption").write_text("not this")
    (folder / "b.caption").write_text("caption")
    (folder / "c.JSON").write_text('{"caption": "json"}')
    (folder / "metadata.jsonl").write_text(
        '{"file_name": "d.png", "text": "metadata"}\n{"file_name": "a.png", "text": "no"}'
    )
    assert captions(collected()) == {
        "set/a.png": ["txt"],
        "set/b.png": ["caption"],
        "set/c.png": ["json"],
        "set/d.png": ["metadata"],
    }


def test_a_metadata_file_covers_the_folders_below_it(tmp_path, picture, collected):
    picture("set/deep/er/a.png")
    (tmp_path / "set" / "metadata.jsonl").write_text('{"file_name": "deep/er/a.png", "text": "far"}')
    assert captions(collected()) == {"set/deep/er/a.png": ["far"]}


def test_broken_metadata_excludes_the_images_that_need_it(tmp_path, picture, collected):
    picture("set/a.png", caption="own")
    picture("set/b.png")
    (tmp_path / "set" / "metadata.jsonl").write_bytes(b"\xff\xff\xff")
    plan = collected()
    assert captions(plan) == {"set/a.png": ["own"]}
    assert "its caption in metadata.jsonl: not UTF-8" in plan.layout.excluded[0].reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\xff\xff\xff", "not UTF-8"), (b'{"file_name": "deep/b.png", "te', "line 1 is invalid JSON")],
)
def test_damaged_metadata_excludes_images_without_a_caption_in_the_folders_below(
    tmp_path, picture, collected, content, reason
):
    picture("set/deep/a.png", caption="own")
    picture("set/deep/b.png")
    picture("set/deep/er/c.png")
    (tmp_path / "set" / "metadata.jsonl").write_bytes(content)
    plan = collected()
    assert captions(plan) == {"set/deep/a.png": ["own"]}
    assert [(e.source, e.unreadable) for e in plan.layout.excluded] == [
        ("set/deep/b.png", False),
        ("set/deep/er/c.png", False),
    ]
    assert all(f"its caption in metadata.jsonl: {reason}" in e.reason for e in plan.layout.excluded)


def test_damaged_metadata_is_no_matter_for_the_folders_next_to_it(tmp_path, picture, collected):
    picture("set/a.png")
    picture("set/deep.2/b.png")
    (tmp_path / "set" / "deep").mkdir()
    (tmp_path / "set" / "deep" / "metadata.jsonl").write_bytes(b"{")
    assert captions(collected()) == {"set/a.png": [""], "set/deep.2/b.png": [""]}


@pytest.mark.parametrize(
    ("folder", "masks"),
    [
        ("\u00e9t\u00e9", "masks/e\u0301te\u0301"),
        ("a", "a/Masks"),
        ("a", "Masks/a"),
        ("a", "a/m\u00e1scaras"),
        ("a", "ma\u0301scaras/a"),
    ],
)
def test_folders_of_masks_are_found_in_another_unicode_form_or_case(picture, collected, folder, masks):
    picture(f"set/{folder}/0.png", size=(16, 16))
    picture(f"set/{masks}/0.png", size=(16, 16))
    name = "masks" if "asks" in masks else "m\u00e1scaras"
    plan = collected(masks=Masks("folder", name))
    assert [(sample.name, sample.lacks_mask) for sample in plan.layout.samples] == [(f"set/{folder}/0.png", False)]


def test_a_folder_named_Masks_has_images_if_masks_are_off(picture, collected):
    picture("set/Masks/carnival.png")
    assert [sample.name for sample in collected().layout.samples] == ["set/Masks/carnival.png"]


def test_a_folder_named_like_a_file_keeps_its_captions(picture, collected):
    picture("set/set.png_v2/a.png", caption="still here")
    assert captions(collected()) == {"set/set.png_v2/a.png": ["still here"]}


def test_a_folder_name_is_a_caption_if_enabled(picture, collected):
    picture("set/10_black cat/a.png")
    assert captions(collected()) == {"set/10_black cat/a.png": [""]}
    plan = collected(captions=Captions(fallback="folder"))
    assert captions(plan) == {"set/10_black cat/a.png": ["black cat"]}
    assert plan.column("repeats").tolist() == [10]


def test_subfolders_can_be_excluded(picture, collected):
    picture("set/a.png")
    picture("set/below/b.png")
    assert len(collected()) == 2 and len(collected(recursive=False)) == 1


def test_samples_are_sorted_whatever_order_the_disk_lists(picture, collected):
    for name in ("b/2.png", "b/10.png", "a.png", "B.png", "a/z.png"):
        picture(f"set/{name}")
    assert list(captions(collected())) == ["set/B.png", "set/a.png", "set/a/z.png", "set/b/10.png", "set/b/2.png"]


def test_a_prompt_is_the_caption_of_all_images(picture, collected):
    picture("set/a.png", caption="its own")
    assert captions(collected(prompt="a dog", captions=Captions(prefix="photo of "))) == {
        "set/a.png": ["photo of a dog"]
    }


COMPOSED, DECOMPOSED = "\u00e9t\u00e9", "e\u0301te\u0301"  # été, as Windows and Linux write it, and as macOS does


def notes(plan) -> list[str]:
    return [f"{note.source}: {note.text}" for note in plan.layout.notes]


@pytest.mark.parametrize(("image", "sidecar"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED), ("mixed", "Mixed")])
def test_a_caption_belongs_to_its_image_in_any_unicode_form_and_case(tmp_path, picture, collected, image, sidecar):
    picture(f"set/{image}.png")
    (tmp_path / "set" / f"{sidecar}.txt").write_text("found")
    plan = collected()
    assert captions(plan) == {f"set/{image}.png": ["found"]} and not notes(plan)


@pytest.mark.parametrize(("image", "listed"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED), ("mixed", "Mixed")])
def test_metadata_names_an_image_in_any_unicode_form_and_case(tmp_path, picture, collected, image, listed):
    picture(f"set/sub/{image}.png")
    row = {"file_name": f"sub/{listed}.png", "text": "found"}
    (tmp_path / "set" / "metadata.jsonl").write_text(json.dumps(row))
    plan = collected()
    assert captions(plan) == {f"set/sub/{image}.png": ["found"]} and not notes(plan)


@pytest.mark.parametrize(("image", "mask"), [(COMPOSED, DECOMPOSED), ("mixed", "Mixed")])
@pytest.mark.parametrize("place", ["set/{}-masklabel.png", "set/masks/{}.png"])
def test_a_mask_belongs_to_its_image_in_any_unicode_form_and_case(picture, collected, image, mask, place):
    picture(f"set/{image}.png")
    picture(place.format(mask))
    plan = collected(masks=Masks("auto"))
    assert [sample.item.mask is not None for sample in plan.layout.samples] == [True] and not notes(plan)


def test_the_closest_name_wins(tmp_path, picture, collected):
    """A caption that belongs to one image exactly is not given to another one by its case."""
    for name in (f"{COMPOSED}.png", "cat.png", "Cat.png", "dog.png", "Owl.png"):
        picture(f"set/{name}")
    folder = tmp_path / "set"
    for name, text in {COMPOSED: "composed", DECOMPOSED: "decomposed", "Cat": "large", "dog": "dog"}.items():
        (folder / f"{name}.txt").write_text(text)
    (folder / "DOG.caption").write_text("by case")
    (folder / "owl.txt").write_text("by case")
    (folder / "metadata.jsonl").write_text('{"file_name": "Owl.png", "text": "by name"}')
    found = {name.removeprefix("set/"): lines for name, lines in captions(collected()).items()}
    assert found == {
        f"{COMPOSED}.png": ["composed"],
        "cat.png": [""],
        "Cat.png": ["large"],
        "dog.png": ["dog"],
        "Owl.png": ["by name"],
    }


def test_captions_and_masks_without_an_image_are_named(tmp_path, picture, collected):
    picture("set/cat.png", caption="a cat")
    picture("set/lost-masklabel.png")
    folder = tmp_path / "set"
    for name in ("dgo", *(f"extra-{n}" for n in range(7))):
        (folder / f"{name}.txt").write_text("a dog")
    (folder / "metadata.jsonl").write_text('{"file_name": "gone.png", "text": "x"}')
    found = notes(collected(masks=Masks("file")))
    assert "set/: has caption files that belong to no image: dgo.txt, extra-0.txt" in "\n".join(found)
    assert "and 3 more" in "\n".join(found)
    assert "set/: has mask files that belong to no image: lost-masklabel.png" in found
    assert "set/metadata.jsonl: has captions of images that are not here: gone.png" in found
    assert not notes(collected(prompt="all the same", masks=Masks("none")))
