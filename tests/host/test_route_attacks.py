"""Hostile requests to the real server: each is refused with a message, and nothing below its base folder changes."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from streamcache.dataset_cache import open_cache
from streamcache.tests.host.asking import Answer, get, post, send, send_zip, snapshot
from streamcache.tests.host.schemas import longest_body, operations, parameters, takes_json
from streamcache.tests.host.server import Server
from streamcache.tests.support.samples import write_cache

pytestmark = pytest.mark.host

NAMES = [
    *(
        "..",
        "../victim",
        "../../input",
        "a/../victim",
        "victim/..",
        "./victim",
        "group//x",
        "/",
        "/etc/passwd",
        "//victim",
    ),
    *("..\\victim", "\\\\server\\share", "C:\\victim", "C:/victim", "c:victim", "\\\\?\\C:\\x", "victim::$DATA"),
    *(
        "con",
        "NUL",
        "nul.txt",
        "aux/x",
        "com1",
        "lpt9.json",
        "conin$",
        "victim.",
        "victim/ x",
        "x/.hidden",
        ".trash",
        "..",
    ),
    *(
        "victim\0",
        "a\0/../victim",
        "\0",
        "a\nb",
        "\x7f",
        "\ud800",
        "x\udfff",
        "a<b",
        "a|b",
        'a"b',
        "a*",
        "?",
        "",
        "   ",
    ),
    *(
        "x" * 121,
        "x" * 1999,
        "/".join("x" * 9),
        "é" * 100 + "/" + "💀" * 100,
        "💀" * 100,
        "out",
        "out/x",
        "loop",
        "victim/shards",
    ),
]
NUMBERS = [
    "-1",
    "-0.5",
    "1.5",
    "1e3",
    "NaN",
    "Infinity",
    "0x10",
    "",
    " 1",
    "1 ",
    "+1",
    "1_0",
    "١",
    "9" * 400,
    str(1 << 53),
]
WRONG_TYPES = [None, 1, 1.5, True, [], {}, ["victim"], {"name": "victim"}]
BODIES = [
    b"",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{",
    b"\xff\xfe",
    b'{"name": "victim"',
    b"[" * 5000,
    b"NaN",
    b"{'name': 1}",
]
PATHS = ("name", "to", "id", "file", "upload", "folder", "token")
ZIPS = "/folder/zip"  # the body is a zip


@pytest.fixture(scope="module")
def attacked(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The server's base folder, with a cache, a copy and a run to attack, and links that point outside."""
    output, outside = server.base / "output", write_cache(tmp_path_factory.mktemp("outside") / "secret", 1)
    (outside / "run.json").write_text("{}")
    roots = [output / name for name in ("streamcache", "streamcache_export", "streamcache_runs")]
    for root in roots:
        write_cache(root / "victim", 3)
        (root / "out").symlink_to(outside)
        (root / "loop").symlink_to(root / "loop")
    (roots[2] / "victim" / "run.json").write_text("{}")
    write_cache(roots[0] / "thrown", 1)
    assert post(server, "/cache/delete", {"name": "thrown"}).status == 200
    yield server.base
    for root in roots:
        (root / "out").unlink()
        (root / "loop").unlink()
    shutil.rmtree(roots[2] / "victim")


@pytest.fixture(autouse=True)
def nothing_changes(server: Server, attacked: Path) -> Iterator[None]:
    before, printed = snapshot(attacked), len(server.printed())
    yield
    assert snapshot(attacked) == before
    assert "Traceback" not in server.printed()[printed:], server.printed()[-3000:]
    assert get(server, "/cache", name="victim").status == 200, "the server still responds"


def assert_refused(answer: Answer, what: Any) -> None:
    assert 400 <= answer.status < 500, f"{answer.status} for {what!r:.200}: {answer.data[:200]!r}"
    assert isinstance(answer.json["error"], str) and answer.json["error"].strip(), what


def valid(operation: dict[str, Any]) -> dict[str, Any]:
    """Valid values for all required parameters."""
    plain = {"name": "victim", "categories": ["debris"], "ids": ["0" * 32], "number": 0, "to": "new", "id": "0" * 32}
    plain |= {"plan": "0" * 32, "file": "step-00000001-0.png", "upload": "0" * 16, "folder": "victim"}
    plain |= {"text": "new", "token": "0" * 16, "edits": [{"kind": "prefix", "text": "new"}]}
    plain |= {"tags": [], "remote": "studio/victim"}
    plain |= {"most": 0}  # nothing may be dropped
    plain |= {"bytes": 0, "example": "none"}  # refused: nothing may change
    return {name: plain[name] for name, (required, _) in parameters(operation).items() if required}


def ask(server: Server, method: str, path: str, values: dict[str, Any]) -> Answer:
    if path == ZIPS:
        return send_zip(server, b"PK", **values)
    return get(server, path, **values) if method == "GET" else post(server, path, values)


def test_names_cannot_point_elsewhere(server: Server):
    asked = 0
    for method, path, operation in operations():
        values = valid(operation)
        for name in (name for name in PATHS if name in values):
            for attack in NAMES:
                assert_refused(ask(server, method, path, {**values, name: attack}), (path, name, attack))
                asked += 1
    assert asked > 500


def test_ids_of_the_trash_cannot_point_elsewhere(server: Server):
    for attack in [*NAMES, "0" * 32, "f" * 32, "../" + "0" * 29]:
        assert_refused(post(server, "/trash/restore", {"id": attack}), attack)
        assert_refused(post(server, "/trash/empty", {"ids": [attack]}), attack)


def test_numbers_are_bounded(server: Server):
    for name, attacks in {"start": NUMBERS, "count": ["0", "501", *NUMBERS], "number": ["3", *NUMBERS]}.items():
        path = "/cache/thumbnail" if name == "number" else "/cache/samples"
        for attack in attacks:
            assert_refused(get(server, path, name="victim", **{name: attack}), (name, attack))
    for name, attacks in {"points": ["49", "5001", *NUMBERS], "smoothing": ["1000", *NUMBERS]}.items():
        for attack in attacks:
            assert_refused(get(server, "/run", name="victim", **{name: attack}), (name, attack))


def test_types_are_checked(server: Server):
    for _, path, operation in operations():
        values = valid(operation)
        if not takes_json(operation):
            continue
        for name, right in values.items():
            lists = [["a"] * 501, [1], [None], [["a"]], "debris"] if isinstance(right, list) else []
            for wrong in [*lists, *(each for each in WRONG_TYPES if type(each) is not type(right))]:
                assert_refused(post(server, path, {**values, name: wrong}), (path, name, wrong))
        for body in BODIES:
            headers = {"Content-Type": "application/json"}
            assert_refused(send(server, "POST", f"/streamcache{path}", body, headers), (path, body[:20]))


def drawn(draw: random.Random, depth: int = 3) -> Any:
    """Random JSON: mostly small, sometimes long, deep or odd."""
    plain = [None, True, -1, 0, 1 << 70, 1.5, "", "a", "x" * 3000, draw.choice(NAMES), draw.choice(NUMBERS)]
    if not depth or draw.random() < 0.6:
        return draw.choice(plain)
    if draw.random() < 0.5:
        return [drawn(draw, depth - 1) for _ in range(draw.randrange(4))]
    return {draw.choice(["name", "to", "id", "ids", "plan", "more"]): drawn(draw, depth - 1) for _ in range(3)}


def test_random_bodies_are_refused(server: Server):
    draw = random.Random(6)
    posts = [(path, operation) for method, path, operation in operations() if method == "POST"]
    for _ in range(600):
        path, operation = draw.choice(posts)
        values = {name: drawn(draw) for name in parameters(operation)}
        assert_refused(post(server, path, draw.choice([values, drawn(draw, 2) or 1])), (path, values))


def test_unknown_parameters_are_refused(server: Server):
    for method, path, operation in operations():
        values = valid(operation)
        assert_refused(ask(server, method, path, {**values, "path": "/etc/passwd"}), path)
        twice = f"/streamcache{path}?name=victim&name=victim"
        assert_refused(send(server, "GET", twice), twice) if method == "GET" else None


def test_other_methods_are_refused(server: Server):
    known = {(method, path) for method, path, _ in operations()}
    for path in {path for _, path in known}:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            if (method, path) not in known:
                answer = send(server, method, f"/streamcache{path}?name=victim", b"{}" if method != "GET" else None)
                assert_refused(answer, (method, path))
                assert answer.status == 405 and answer.headers["allow"]


def test_unknown_paths_are_refused(server: Server):
    for path in (
        "",
        "/",
        "/nothing",
        "/cache/",
        "/cache/samples/1",
        "//cache",
        "/cache/%2e%2e/caches/x",
        "/.git/config",
    ):
        for prefix in ("/streamcache", "/api/streamcache"):
            answer = send(server, "GET", f"{prefix}{path}")
            assert answer.status == 404, path


@pytest.mark.parametrize("prefix", ["/streamcache", "/api/streamcache"])
def test_pages_of_other_sites_are_refused(server: Server, prefix: str):
    origins = [
        "https://evil.example",
        "http://127.0.0.1.evil.example",
        "null",
        "",
        "http://127.0.0.1:1",
        "http://localhost",
    ]
    sites = [{"Origin": origin} for origin in origins]
    sites += [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
    for method, path, operation in operations():
        body = json.dumps(valid(operation)).encode()
        for site in sites if method == "POST" else ():
            answer = send(server, "POST", prefix + path, body, {"Content-Type": "application/json", **site})
            assert answer.status == 403, (path, site)  # some by ComfyUI itself, without a message


@pytest.mark.parametrize("prefix", ["/streamcache", "/api/streamcache"])
def test_names_of_other_sites_are_refused(server: Server, prefix: str):
    """DNS rebinding: a site lets its name resolve to this machine, so that its pages count as ComfyUI's own."""
    port = server.address.rpartition(":")[2]
    for method, path, operation in operations():
        body = json.dumps(valid(operation)).encode() if method == "POST" else None
        query = f"?{urlencode(valid(operation))}" if method == "GET" else ""
        for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}"):
            headers = {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"}
            answer = send(server, method, f"{prefix}{path}{query}", body, headers)
            assert_refused(answer, (path, host))
            assert answer.status == 403, (path, host)
        for host in (f"localhost:{port}", f"workstation.local:{port}", f"192.168.1.20:{port}"):
            headers = {"Host": host, "Content-Type": "application/json"}
            assert send(server, method, f"{prefix}{path}?unknown=1", b"{}", headers).status != 403, (path, host)


def test_a_form_of_another_site_is_refused(server: Server):
    """Content types that a page can send to another site without a preflight request."""
    for method, path, operation in operations():
        body = json.dumps(valid(operation)).encode()
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", None):
            if method == "POST":
                answer = send(
                    server, "POST", f"/streamcache{path}", body, {} if kind is None else {"Content-Type": kind}
                )
                assert_refused(answer, (path, kind))
                assert answer.status == 415


def test_long_bodies_are_not_read(server: Server):
    for _, path, operation in operations():
        if takes_json(operation):
            long = json.dumps({"name": "victim", "more": "x" * max(1 << 20, longest_body(operation))}).encode()
            answer = send(server, "POST", f"/streamcache{path}", long, {"Content-Type": "application/json"})
            assert_refused(answer, path)
            assert answer.status == 413
            many = {f"key {n}": n for n in range(3000)}
            assert_refused(post(server, path, many), path)


def test_searches_are_bounded(server: Server):
    for attack in (" ".join(map(str, range(30))), "x" * 2001):
        assert_refused(get(server, "/cache/samples", name="victim", search=attack), attack)
    for odd in ("(", "[", "\\", "%", "\0", "\ud800", "💀", "a" * 2000, ".*"):
        assert get(server, "/cache/samples", name="victim", search=odd).json["total"] == 0


def test_nothing_behind_a_link_is_shown(server: Server):
    rows = get(server, "/caches").json["caches"]
    assert not {"out", "loop", "out/x"} & {row["name"] for row in rows}
    for path in ("/cache", "/cache/samples", "/cache/clean"):
        assert "secret" not in get(server, path, name="out").data.decode()


def test_raw_targets_are_refused(server: Server):
    for name in ("%2e%2e%2fvictim", "%00", "..%5cvictim", "%c0%ae%c0%ae/", "%ed%a0%80", quote("..\\..\\x")):
        assert_refused(send(server, "GET", f"/streamcache/cache?name={name}"), name)


class TestUntrustedCaches:
    """A cache folder from elsewhere cannot break the server, nor make it read other files."""

    @pytest.fixture
    @staticmethod
    def folder(attacked: Path, nothing_changes: None) -> Iterator[Path]:
        folder = write_cache(attacked / "output" / "streamcache" / "stranger", 2)
        yield folder
        shutil.rmtree(folder)

    def look(self, server: Server) -> list[Answer]:
        name = {"name": "stranger"}
        answers = [get(server, path, **name) for path in ("/cache", "/cache/samples", "/cache/clean")]
        answers += [
            get(server, "/cache/samples", **name, search="a"),
            get(server, "/cache/thumbnail", **name, number=1),
        ]
        assert all(answer.status < 500 for answer in answers), [answer.data[:200] for answer in answers]
        rows = [row["name"] for row in get(server, "/caches").json["caches"]]
        assert "victim" in rows and "stranger" in rows
        return answers

    @pytest.mark.parametrize("name", ["dataset.json", "index", "shards"])
    def test_links_are_not_followed(self, server: Server, folder: Path, tmp_path: Path, name: str):
        place = next(folder.glob("index-*")) if name == "index" else folder / name
        os.rename(place, tmp_path / "moved")
        place.symlink_to(tmp_path / "moved")
        answers = self.look(server)
        assert answers[4].status >= 400, "no image comes from behind the link"

    @pytest.mark.parametrize(
        "content", [b"", b"{}", b"[" * 100_000, b'{"format": 1}', b"\xff" * 100, b'{"format": 1e999}']
    )
    def test_an_invalid_manifest_does_not_break_the_list(self, server: Server, folder: Path, content: bytes):
        (folder / "dataset.json").write_bytes(content)
        assert all(answer.status >= 400 for answer in self.look(server))

    def test_a_truncated_index_is_refused(self, server: Server, folder: Path):
        index = next(folder.glob("index-*"))
        index.write_bytes(index.read_bytes()[:100])
        self.look(server)

    def test_a_pipe_does_not_block_requests(self, server: Server, folder: Path):
        if not hasattr(os, "mkfifo"):
            pytest.skip("no pipes here")
        (folder / "dataset.json").unlink()
        os.mkfifo(folder / "dataset.json")
        assert get(server, "/caches").status == 200
        assert get(server, "/cache", name="victim").status == 200
        (folder / "dataset.json").unlink()


def test_the_attacked_cache_is_intact(attacked: Path):
    assert len(open_cache(attacked / "output" / "streamcache" / "victim", check=True)) == 3
