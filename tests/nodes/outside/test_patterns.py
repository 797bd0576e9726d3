"""Patterns of names and ids: the document has them, and the server takes what matches."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamcache.dataset_cache import is_long_name
from streamcache.dataset_cache.intake.upload import UPLOAD_ID
from streamcache.lora_train import check_run_name
from streamcache.nodes.library import parse_name
from streamcache.nodes.outside import patterns
from streamcache.tests.host.schemas import DOCUMENT, operations, parameters
from streamcache.tests.host.test_route_attacks import NAMES

EDGES = ["x" * 120, "é" * 115, "日" * 76, "🐱" * 57, "a b", "con_x", "x.con", "~x", "a/" * 7 + "a", "v1.0"]
REFUSED = [
    "x" * 121,
    "é" * 116,
    "日" * 77,
    "🐱" * 58,
    "con",
    "CoM1.txt",
    "aux .x",
    "a/nul",
    " x",
    "x\u3000",
    "\x85x",
    "a/../b",
]


@settings(max_examples=60, deadline=None)
@given(st.from_regex(patterns.CACHE_NAME, fullmatch=True))
def test_every_documented_name_of_a_cache_is_taken(name: str):
    assert "/".join(parse_name(name)) == name


@settings(max_examples=60, deadline=None)
@given(st.from_regex(patterns.RUN_NAME, fullmatch=True))
def test_every_documented_name_of_a_run_is_taken(name: str):
    check_run_name(name)


@settings(max_examples=60, deadline=None)
@given(st.from_regex(patterns.SEARCH, fullmatch=True))
def test_every_documented_search_is_short_enough(search: str):
    assert len(search.split()) <= 20


@pytest.mark.parametrize("name", EDGES, ids=range(len(EDGES)))
def test_names_at_the_limits_are_documented(name: str):
    assert re.search(patterns.CACHE_NAME, name) and "/".join(parse_name(name)) == name
    assert not any(map(is_long_name, name.split("/")))


@pytest.mark.parametrize("name", REFUSED, ids=range(len(REFUSED)))
def test_names_that_are_refused_or_changed_are_not_documented(name: str):
    assert not re.search(patterns.CACHE_NAME, name) and not re.search(patterns.RUN_NAME, name)


def test_no_attack_is_documented():
    """Except names that only lead elsewhere because of links on the attacked server."""
    allowed = {name for name in NAMES if re.search(patterns.CACHE_NAME, name)}
    assert allowed == {"out", "out/x", "loop", "victim/shards"}


def test_the_document_has_the_patterns():
    expected = {"file": patterns.SAMPLE_FILE, "search": patterns.SEARCH}
    expected |= {"folder": patterns.CACHE_NAME, "upload": UPLOAD_ID, "remote": patterns.CACHE_NAME}
    for _, path, operation in operations():
        expected["name"] = expected["to"] = patterns.RUN_NAME if path.startswith("/run") else patterns.CACHE_NAME
        if path.startswith("/folder"):
            del expected["name"]  # a file, of any name that files may have
        expected["file"] = patterns.GRID_FILE if "/grid" in path else patterns.SAMPLE_FILE
        if path == "/run/lora":
            del expected["file"]  # one that the run has written, of any name
        expected["id"] = patterns.JOB_ID if path.startswith("/job") else patterns.TRASH_ID
        for name, (_, schema) in parameters(operation).items():
            assert schema.get("pattern") == expected.get(name), (path, name)
    ids = DOCUMENT["paths"]["/streamcache/trash/empty"]["post"]["requestBody"]
    assert json.dumps(patterns.TRASH_ID) in json.dumps(ids)
