"""Untrusted input: requests of other sites are refused, values from files are truncated."""

import json

import pytest

from streamcache.nodes.server.untrusted import cross_site, cut

HOST = {"Host": "comfy.example:8188"}
OWN = [
    {},
    {"Origin": "http://comfy.example:8188"},
    {"Origin": "https://COMFY.example:8188"},
    {"Origin": "http://comfy.example"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://comfy.example:8188"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"},
    {"Sec-Fetch-Site": "none"},
]
OTHERS = [
    {"Origin": "http://evil.example"},
    {"Origin": "http://comfy.example:81"},
    {"Origin": "http://comfy.example.evil.example:8188"},
    {"Origin": "http://comfy.example@evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://comfy.example:99999"},
    {"Origin": "http://[comfy.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://comfy.example:8188"},
]


@pytest.mark.parametrize("headers", OWN)
def test_own_pages_and_programs_are_served(headers: dict[str, str]):
    assert cross_site({**HOST, **headers}) == ""


@pytest.mark.parametrize("headers", OTHERS)
def test_other_sites_are_refused(headers: dict[str, str]):
    assert "another site" in cross_site({**HOST, **headers}) or "page of" in cross_site({**HOST, **headers})


@pytest.mark.parametrize("headers", OTHERS)
def test_other_sites_are_served_if_comfyui_allows_them(headers: dict[str, str]):
    assert cross_site({**HOST, **headers}, open_to_others=True) == ""


def test_a_page_request_without_a_host_is_refused():
    assert cross_site({"Origin": "http://comfy.example"})
    assert cross_site({"Origin": "null"})


def test_long_deep_and_invalid_values_are_cut():
    deep: list = []
    for _ in range(500):
        deep = [deep]
    strange = {"deep": deep, "long": "x" * 10_000, "many": list(range(9999)), "nan": float("nan"), "odd": object()}
    shown = cut(strange)
    assert len(json.dumps(shown, allow_nan=False)) < 20_000
    assert shown["nan"] is None and len(shown["many"]) == 200
