"""Untrusted input: requests of other sites are refused, values from files are truncated."""

import json

import pytest

from streamcache.nodes.outside.untrusted import allowed_hosts, cross_site, cut, foreign_host

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


OWN_NAMES = [
    *("localhost", "localhost:8188", "LOCALHOST", "comfy.localhost", "127.0.0.1:8188", "192.168.1.20", "[::1]:8188"),
    *("[fe80::1%25eth0]:8188", "workstation:8188", "workstation.local", "comfy.internal:80", "box.home.arpa"),
    *("box.lan:8188", "comfy.home", "pc.corp:80", "nas.localdomain", "box.fritz.box:8188", "Box.LAN."),
]
OTHER_NAMES = [
    *("evil.example", "evil.example:8188", "127.0.0.1.evil.example", "localhost.evil.example", "EVIL.example."),
    *("localhost@evil.example", "local.evil", "evil.example:99999", "[evil.example", "", "notlocal.example:80", "a.b"),
    *("lan.evil", "evilfritz.box", "box.lan.evil.example", "plan.example"),
]


@pytest.mark.parametrize("host", OWN_NAMES)
def test_addresses_and_local_names_are_served(host: str):
    assert foreign_host({"Host": host}) == ""


@pytest.mark.parametrize("host", OTHER_NAMES)
def test_names_that_a_site_can_have_are_refused(host: str):
    problem = foreign_host({"Host": host, "Origin": f"http://{host}"})
    assert "not allowed" in problem and "STREAMCACHE_ALLOWED_HOSTS" in problem


def test_allowed_names_are_served():
    allowed = allowed_hosts(" Comfy.example.com ,*.proxy.example.net", "0.0.0.0,my.listen.name")
    for host in ("comfy.example.com:8188", "COMFY.example.com.", "a.b.proxy.example.net", "my.listen.name"):
        assert foreign_host({"Host": host}, allowed) == "", host
    for host in ("x.comfy.example.com", "proxy.example.net", "evilproxy.example.net", "comfy.example.com.evil.example"):
        assert foreign_host({"Host": host}, allowed), host
    assert foreign_host({"Host": "any.example"}, allowed_hosts("*", "127.0.0.1")) == ""


@pytest.mark.parametrize(
    "listed",
    ["box.example.com:8188", "https://Box.example.com", "http://box.example.com.:8188/x", "a.b; box.example.com"],
)
def test_an_allowed_name_may_be_written_as_in_the_browser(listed: str):
    allowed = allowed_hosts(listed, "0.0.0.0,::")
    assert foreign_host({"Host": "box.example.com:8188"}, allowed) == ""
    assert foreign_host({"Host": "evil.example"}, allowed)
    below = allowed_hosts("https://*.example.com:8188/, http://[broken", "")
    assert foreign_host({"Host": "box.example.com"}, below) == "" and foreign_host({"Host": ""}, below)


def test_a_proxy_with_https_needs_no_setting():
    """Browsers send Sec-Fetch-Site only over HTTPS, for which another site has no certificate on this machine."""
    assert foreign_host({"Host": "comfy.example.com", "Sec-Fetch-Site": "same-origin"}) == ""


def test_a_program_that_sends_no_host_is_served():
    assert foreign_host({}) == ""


def test_long_deep_and_invalid_values_are_cut():
    deep: list = []
    for _ in range(500):
        deep = [deep]
    strange = {"deep": deep, "long": "x" * 10_000, "many": list(range(9999)), "nan": float("nan"), "odd": object()}
    shown = cut(strange)
    assert len(json.dumps(shown, allow_nan=False)) < 20_000
    assert shown["nan"] is None and len(shown["many"]) == 200
