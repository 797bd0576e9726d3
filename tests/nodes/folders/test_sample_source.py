"""The image that a sample was made from: found where the machine remembers it, or by its name, or a reason."""

import os
import shutil
import unicodedata
from pathlib import Path

import pytest

from streamcache.nodes.folders import sample_source
from streamcache.nodes.folders.sample_source import find_source

from .pictures import write_folder


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, list[Path]]:
    for name in ("input", "more"):
        (tmp_path / name).mkdir()
    return {"input": [tmp_path / "input"], "datasets": [tmp_path / "more"]}


@pytest.fixture
def remember(monkeypatch):
    def remember(*folders: Path) -> None:
        monkeypatch.setattr(sample_source, "remembered_folders", lambda dataset, limit: list(map(str, folders)))

    remember()
    return remember


def test_a_remembered_folder_is_found_at_any_depth(tmp_path: Path, roots, remember):
    folder = write_folder(tmp_path / "input" / "datasets" / "cats", {"a.png": "", "sub/b.png": ""})
    remember(folder, folder / "sub")
    found = {"folder": "input/datasets/cats", "image": "sub/b.png"}
    assert find_source("cats/sub/b.png", "id", roots) == found
    assert find_source("cats/a.png", "id", roots) == {**found, "image": "a.png"}


def test_without_a_memory_folders_of_that_name_are_searched(tmp_path: Path, roots, remember):
    write_folder(tmp_path / "more" / "cats", {"a.png": ""})
    write_folder(tmp_path / "input" / "cats", {"b.png": ""})
    assert find_source("cats/a.png", "id", roots) == {"folder": "datasets/cats", "image": "a.png"}
    shutil.copyfile(tmp_path / "more" / "cats" / "a.png", tmp_path / "input" / "cats" / "a.png")
    assert "several folders" in find_source("cats/a.png", "id", roots)["reason"]


def test_a_folder_that_comfyui_does_not_offer_has_a_reason(tmp_path: Path, roots, remember):
    remember(write_folder(tmp_path / "private" / "cats", {"a.png": ""}))
    assert "not below ComfyUI's input folder" in find_source("cats/a.png", "id", roots)["reason"]


def test_sources_that_are_away_have_a_reason(tmp_path: Path, roots, remember):
    remember(tmp_path / "input" / "cats")
    assert "is not below" in find_source("cats/a.png", "id", roots)["reason"]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "image 3",
        "a.png",
        "cats/../a.png",
        "../input/a.png",
        "cats//a.png",
        "/etc/a.png",
        "cats/.a.png",
        "cats/a.txt",
    ],
)
def test_what_is_not_a_file_in_a_folder_has_a_reason(tmp_path: Path, roots, remember, source: str):
    write_folder(tmp_path / "input" / "cats", {"a.png": ""})
    assert "not made from an image file" in find_source(source, "id", roots)["reason"]


def test_names_in_another_unicode_form_are_found(tmp_path: Path, roots, remember):
    write_folder(tmp_path / "input" / unicodedata.normalize("NFD", "é"), {unicodedata.normalize("NFD", "ü.png"): ""})
    found = find_source(unicodedata.normalize("NFC", "é/ü.png"), "id", roots)
    assert unicodedata.normalize("NFC", found["image"]) == unicodedata.normalize("NFC", "ü.png")


@pytest.mark.skipif(os.name == "nt", reason="links need privileges there")
def test_no_link_leads_out(tmp_path: Path, roots, remember):
    folder = write_folder(tmp_path / "input" / "cats", {"a.png": ""})
    write_folder(tmp_path / "private", {"b.png": ""})
    (folder / "out").symlink_to(tmp_path / "private")
    assert "reason" in find_source("cats/out/b.png", "id", roots)
