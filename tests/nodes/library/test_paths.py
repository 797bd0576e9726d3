"""Text from a widget becomes a path inside its root or an error. Choices of widgets never wait for a slow disk."""

import os
import threading
import time
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, CacheWriter
from streamcache.nodes.library import paths
from streamcache.nodes.library.paths import Choices, path_of_new_folder, path_to_open, path_to_save

from ...support.datasets import write_set

ATTACKS = [
    "s3://bucket/set",
    "http://169.254.169.254/latest",
    "hf://datasets/owner/name",
    "",
    "   ",
    "/etc/passwd",
    "//server/share",
    "\\\\server\\share\\set",
    "..",
    "../outside",
    "a/../../outside",
    "a\\..\\..\\outside",
    "./here",
    "a//b",
    "a/",
    "C:\\Windows",
    "C:relative",
    "c:/set",
    "name:stream",
    "CON",
    "con",
    "nul.txt",
    "a/AUX/b",
    "com1",
    "COM¹.log",
    "LPT9",
    "CONIN$",
    "NUL .txt",
    ".hidden",
    "a/.build",
    "trailing.",
    "trailing ",
    "a/ leading",
    "star*",
    "what?",
    'quote"',
    "pipe|",
    "less<",
    "nul\0byte",
    "line\nbreak",
    "\x7f",
    "half\ud800pair",
    "x" * 121,
    "💀" * 100,
    "/".join("abcdefghi"),
]


@pytest.mark.parametrize("name", [a for a in ATTACKS if a != "trailing "])
def test_names_that_could_lead_elsewhere_are_refused(name: str, tmp_path: Path):
    for resolve in (paths.path_to_save, paths.path_to_open):
        with pytest.raises(CacheError, match="name"):
            resolve(name, [tmp_path])
    with pytest.raises(CacheError, match="name"):
        paths.path_of_folder(name, {"input": [tmp_path]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["my_set", "group/my_set", "group\\my_set", "Größe 3", "猫", "a-b.c", "console", " set "]
)
def test_plain_names_stay_below_the_root(name: str, tmp_path: Path):
    path = paths.path_to_save(name, [tmp_path])
    assert path == tmp_path.joinpath(*name.strip().replace("\\", "/").split("/"))


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_out_of_the_root_are_refused(tmp_path: Path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    make_cache(outside / "set")
    (root / "link").symlink_to(outside, target_is_directory=True)
    with pytest.raises(CacheError, match="leads out of"):
        paths.path_to_open("link/set", [root])
    with pytest.raises(CacheError, match="leads out of"):
        paths.path_to_save("link/new", [root])
    assert paths.list_names([root]) == []


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_root_may_itself_be_a_link(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real", target_is_directory=True)
    make_cache(tmp_path / "real" / "set")
    assert paths.path_to_open("set", [tmp_path / "root"]) == tmp_path / "root" / "set"


def test_a_saved_cache_is_found_below_any_root(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    make_cache(second / "group" / "mine")
    assert paths.path_to_open("group/mine", [first, second]) == second / "group" / "mine"
    assert paths.path_to_save("group/mine", [first, second]) == second / "group" / "mine"
    assert paths.path_to_save("group/other", [first, second]) == first / "group" / "other"


def test_a_missing_cache_is_reported_with_those_that_exist(tmp_path: Path):
    make_cache(tmp_path / "cats")
    with pytest.raises(CacheError, match="cache 'dogs' not found.*cats"):
        paths.path_to_open("dogs", [tmp_path])


def test_a_cache_is_not_saved_into_another_one(tmp_path: Path):
    make_cache(tmp_path / "cats")
    with pytest.raises(CacheError, match="inside the cache cats"):
        paths.path_to_save("cats/shards/mine", [tmp_path])


def test_a_folder_of_other_files_is_not_saved_into(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("mine")
    (tmp_path / "note").write_text("mine")
    with pytest.raises(CacheError, match="do not belong to a cache"):
        paths.path_to_save("photos", [tmp_path])
    with pytest.raises(CacheError, match="taken by a file"):
        paths.path_to_save("note", [tmp_path])


def test_only_published_caches_are_listed_and_not_searched(tmp_path: Path):
    for name in ("b", "a", "group/c"):
        make_cache(tmp_path / name)
    (tmp_path / "unfinished" / ".build").mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    assert paths.list_names([tmp_path, tmp_path / "nowhere"]) == ["a", "b", "group/c"]


def test_source_folders_are_found_by_label_or_in_order(tmp_path: Path):
    for folder in ("input/cats", "sets/cats", "sets/dogs/10_dog", "input/input"):
        (tmp_path / folder).mkdir(parents=True)
    roots = {"input": [tmp_path / "input"], "datasets": [tmp_path / "sets"]}
    assert paths.path_of_folder("cats", roots) == tmp_path / "input/cats"
    assert paths.path_of_folder("datasets/cats", roots) == tmp_path / "sets/cats"
    assert paths.path_of_folder("dogs/10_dog", roots) == tmp_path / "sets/dogs/10_dog"
    assert paths.path_of_folder("input", roots) == tmp_path / "input/input"
    assert paths.list_folders(roots) == [
        "datasets/cats",
        "datasets/dogs",
        "datasets/dogs/10_dog",
        "input/cats",
        "input/input",
    ]
    with pytest.raises(CacheError, match="folder 'birds' not found"):
        paths.path_of_folder("birds", roots)


def make_cache(path: Path) -> None:
    import torch

    with CacheWriter(path) as writer:
        writer.add(latent={"samples": torch.zeros(1, 4, 8, 8)}, conditioning=[[torch.zeros(1, 2, 3), {}]])


@pytest.fixture
def always_searched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths, "FRESH_SECONDS", 0.0)


def test_a_quick_search_is_waited_for(always_searched: None):
    found = ["a"]
    names = Choices(lambda: list(found))
    assert names.names() == ["a"]
    found.append("b")
    assert names.names() == ["a", "b"]


def test_a_slow_search_is_not_waited_for_and_runs_once(always_searched: None):
    started, go_on = [], threading.Event()

    def search() -> list[str]:
        started.append(1)
        go_on.wait(60)
        return ["late"]

    names = Choices(search)
    before = time.monotonic()
    assert names.names() == [] and names.names() == []
    assert time.monotonic() - before < 30
    assert len(started) == 1
    go_on.set()
    for _ in range(200):
        if names.names() == ["late"]:
            break
        time.sleep(0.05)
    assert names.names() == ["late"]


def test_a_recent_result_is_returned_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths, "FRESH_SECONDS", 1000.0)
    calls = []
    names = Choices(lambda: calls.append(1) or ["a"])
    assert [names.names() for _ in range(5)] == [["a"]] * 5
    assert len(calls) == 1


def test_a_failed_search_keeps_the_last_names(always_searched: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    answers = iter([["a"]])
    names = Choices(lambda: next(answers))
    assert names.names() == ["a"]
    assert names.names() == ["a"]


def test_a_new_name_leaves_room_for_endings_and_an_old_one_still_opens(tmp_path: Path):
    assert path_to_save("画" * 76, [tmp_path]).parent == tmp_path
    with pytest.raises(CacheError, match="too long for a file system"):
        path_to_save("画" * 78, [tmp_path])
    write_set(tmp_path / ("画" * 80), range(1))
    assert path_to_open("画" * 80, [tmp_path]) == path_to_save("画" * 80, [tmp_path])


NFC, NFD = "\u00e9t\u00e9", "e\u0301te\u0301"


def test_a_cache_is_found_in_another_unicode_form_and_saved_to_the_same_place(tmp_path: Path):
    path = write_set(tmp_path / "root" / NFD / NFD, range(2))
    roots = [tmp_path / "root"]
    for name in (f"{NFC}/{NFC}", f"{NFD}/{NFD}", f"{NFC}/{NFD}"):
        assert path_to_open(name, roots) == path_to_save(name, roots) == path
        with pytest.raises(CacheError, match="taken"):
            paths.path_to_create(name, roots)
    assert path_to_save(f"{NFC}/new", roots) == tmp_path / "root" / NFD / "new"


def test_two_names_that_differ_only_in_their_unicode_form_stay_apart(tmp_path: Path):
    root = tmp_path / "root"
    found = {NFC: write_set(root / NFC, range(2))}
    if (root / NFD).exists():
        pytest.skip("the file system does not tell them apart")
    found[NFD] = write_set(root / NFD, range(2))
    assert {name: path_to_open(name, [root]) for name in found} == found == paths.list_caches([root])


def test_another_case_is_another_name_unless_the_file_system_ignores_it(tmp_path: Path, monkeypatch):
    path, roots = write_set(tmp_path / "root" / "Cats", range(2)), [tmp_path / "root"]
    if not path.with_name("cATS").exists():
        with pytest.raises(CacheError, match="not found"):
            path_to_open("cATS", roots)
        assert path_to_save("cATS", roots) == path.with_name("cATS")
    ignoring_case = {name.lower() for name in os.listdir(path.parent)}
    monkeypatch.setattr(os.path, "lexists", lambda place: os.path.basename(place).lower() in ignoring_case)
    assert path_to_open("cATS", roots) == path


def test_an_image_folder_is_found_in_another_unicode_form(tmp_path: Path):
    (tmp_path / "input" / NFD / "cats").mkdir(parents=True)
    roots = {"input": [tmp_path / "input"]}
    for name in (f"input/{NFC}/cats", f"{NFC}/cats"):
        assert paths.path_of_folder(name, roots) == tmp_path / "input" / NFD / "cats"


def test_new_folders_of_images_go_below_datasets_and_full_names_stay(tmp_path: Path):
    assert path_of_new_folder("cats", tmp_path) == ("input/datasets/cats", tmp_path / "datasets" / "cats")
    assert path_of_new_folder("input/a/b", tmp_path) == ("input/a/b", tmp_path / "a" / "b")
    assert path_of_new_folder("input", tmp_path)[0] == "input/datasets/input"


def test_a_new_folder_of_images_is_neither_a_file_nor_in_a_cache_nor_behind_a_link(tmp_path: Path):
    root = tmp_path / "input"
    write_set(root / "datasets" / "cache", range(1))
    (root / "file.png").write_bytes(b"")
    (root / "out").symlink_to(tmp_path)
    for name in ("cache", "cache/x", "input/file.png", "input/file.png/x", "input/out/x", "../x", "é" * 119):
        with pytest.raises(CacheError):
            path_of_new_folder(name, root)


def test_an_unfinished_pull_can_go_on_under_its_name(tmp_path: Path):
    source, folder = write_set(tmp_path / "elsewhere", range(2)), tmp_path / "root" / "my_set"
    incoming = folder / ".travel/incoming"
    incoming.mkdir(parents=True)
    with pytest.raises(CacheError, match="do not belong to a cache"):
        path_to_save("my_set", [tmp_path / "root"])
    (incoming / "dataset.json").write_bytes((source / "dataset.json").read_bytes())
    assert path_to_save("my_set", [tmp_path / "root"]) == folder
