"""Names of files: which ones every system allows, and which ones in another Unicode form or case mean the same."""

from pathlib import Path

import pytest

from streamcache.dataset_cache.sources.names import distance, folded_form, name_problem, normal_form, spelled

NFC, NFD = "\u00e9t\u00e9", "e\u0301te\u0301"


def test_forms_of_a_name_are_equal_once_normalized():
    assert normal_form(NFC) == normal_form(NFD) == NFC and folded_form(NFD.upper()) == NFC
    assert [distance(NFC, other) for other in (NFC, NFD, NFC.upper())] == [0, 1, 2]


def test_a_name_is_spelled_as_the_folder_has_it(tmp_path: Path):
    (tmp_path / NFD).mkdir()
    assert spelled(tmp_path, NFC) == spelled(tmp_path, NFD) == NFD
    assert spelled(tmp_path, "new") == "new" and spelled(tmp_path / "missing", NFC) == NFC


def test_of_two_forms_each_means_itself_and_a_third_none(tmp_path: Path):
    for name in (NFC, NFD):
        (tmp_path / name).mkdir(exist_ok=True)
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("the file system does not tell them apart")
    mixed = "\u00e9te\u0301"
    assert [spelled(tmp_path, name) for name in (NFC, NFD, mixed)] == [NFC, NFD, mixed]


@pytest.mark.parametrize("name", ["a", "my set", "猫", "a.b", "con1", "com", "nulls.png", "x" * 120, "-a", "(1)"])
def test_plain_names_are_allowed(name: str):
    assert name_problem(name) == ""


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "a.", "a ", " a", "a:b", "a\n", "\0", "CON", "nul.txt", "x" * 121, "\ud800", "é" * 128],
)  # fmt: skip
def test_other_names_have_a_reason(name: str):
    assert name_problem(name)


def test_files_may_have_longer_names_than_folders():
    assert name_problem("x" * 200, 220) == "" and name_problem("x" * 221, 220)


def test_unicode_forms_and_cases_are_the_same_name():
    assert normal_form("e\u0301") == "\u00e9" != normal_form("E\u0301")
    assert folded_form("E\u0301A") == folded_form("\u00e9a")
