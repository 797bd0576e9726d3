"""Regular expressions run in a process of their own, which is ended if it takes too long."""

import pytest

from streamcache.dataset_cache.curate.find_replace import replace_pattern
from streamcache.errors import CacheError


def test_all_matches_of_all_texts_are_replaced():
    texts = ["tag1, tag22", "", "ünï \U0001f600 tag3"]
    assert replace_pattern(texts, r"tag(\d)", r"t\1") == ["t1, t22", "", "ünï \U0001f600 t3"]


def test_groups_that_do_not_match_are_empty():
    assert replace_pattern(["b"], "(a)|b", r"[\1]") == ["[]"]


@pytest.mark.parametrize(
    ("find", "by", "reason"),
    [
        ("(", "", "is invalid: missing \\)"),
        ("a", r"\2", "replacement .* is invalid: invalid group reference"),
        ("a", r"\g<x>", "replacement .* is invalid: unknown group name"),
        ("a" * 1001, "", "1,001 characters, expected at most 1,000"),
    ],
)
def test_invalid_expressions_are_refused(find, by, reason):
    with pytest.raises(CacheError, match=reason):
        replace_pattern(["a"], find, by)


def test_an_expression_that_would_run_for_ever_is_ended():
    with pytest.raises(CacheError, match="takes longer than 0.5 s"):
        replace_pattern(["a" * 64 + "!"], r"(a|a)+$", "", seconds=0.5)


def test_a_result_without_measure_is_refused():
    with pytest.raises(CacheError, match="the result would be too long"):
        replace_pattern(["x" * 100_000], "x", "y" * 1000)
