"""Curation over HTTP with bad input: hostile names and texts, files that change meanwhile, folders that go away."""

import json
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamcache import dev
from streamcache.tests.host.asking import Answer, get, post, snapshot
from streamcache.tests.host.graph import Graph
from streamcache.tests.host.pictures import write_picture
from streamcache.tests.host.server import Server, install_pack, start_server

pytestmark = pytest.mark.host

NAMES = [
    "../a.png",
    "..",
    "",
    "/etc/passwd",
    "a.png/../../x",
    "C:\\a.png",
    "\\\\x\\a.png",
    "a\0.png",
    "\ud800.png",
    ".",
]
SCRIPT = '<img src=x onerror="alert(1)"><script>alert(1)</script>'
RIGHT_TO_LEFT = "قطة حمراء \u202eabc, שלום"


@pytest.fixture
def folder(server: Server, request: pytest.FixtureRequest) -> Path:
    """Three captioned images, in a folder of this test alone."""
    path = server.base / "input" / "attacked" / request.node.name.partition("[")[0]
    write_folder(path)
    return path


def write_folder(path: Path) -> None:
    path.mkdir(parents=True)
    for number, name in enumerate("abc"):
        write_picture(path / f"{name}.png", (48, 48), number)
        (path / f"{name}.txt").write_text(f"{name}, red", encoding="utf-8")


def of(folder: Path) -> dict[str, str]:
    return {"folder": f"input/attacked/{folder.name}"}


def rows(server: Server, folder: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in get(server, "/folder/view", **of(folder)).json["images"]}


def preview(server: Server, folder: Path, **values: Any) -> Answer:
    prefix = [{"kind": "prefix", "text": "x "}]
    return post(server, "/folder/preview", {**of(folder), "filter": {}, "edits": prefix, **values})


def test_names_of_images_stay_inside(server: Server, folder: Path):
    (folder.parent / "x.png").write_bytes((folder / "a.png").read_bytes())
    before = snapshot(folder.parent)
    for name in [*NAMES, "../x.png"]:
        for path in ("picture", "mask", "caption"):
            answer = get(server, f"/folder/{path}", **of(folder), name=name)
            assert answer.status == 404, (path, name, answer.data[:200])
        answer = post(server, "/folder/caption", {**of(folder), "name": name, "text": "mine", "stamp": ""})
        assert answer.status == 404, name
        answer = post(server, "/folder/choose", {**of(folder), "names": [name], "excluded": True})
        assert answer.status == 400 or (answer.json["changed"], answer.json["refused_count"]) == ([], 1), name
        shown = post(
            server, "/folder/preview", {**of(folder), "names": [name], "edits": [{"kind": "prefix", "text": "x"}]}
        ).json
        assert shown["total"] == 0 and shown["refused_count"] == 1, name
    assert snapshot(folder.parent) == before


def test_texts_come_back_as_they_are(server: Server, folder: Path):
    for text in (SCRIPT, RIGHT_TO_LEFT, "x" * 100_000, "a\n" * 500 + "b", "💀 e\u0301 é", "\u2028\u0085\x0b"):
        stamp = rows(server, folder)["a.png"]["stamp"]
        values = {**of(folder), "name": "a.png", "text": text, "stamp": stamp}
        assert post(server, "/folder/caption", values).json["changed"] == ["a.png"]
        assert (folder / "a.txt").read_bytes().decode() == text
        row = rows(server, folder)["a.png"]
        assert row["caption"] == text[:20_000] and row["cut"] == (len(text) > 20_000)
        whole = get(server, "/folder/caption", **of(folder), name="a.png")
        assert whole.json["caption"] == text and "json" in whole.headers["content-type"]


def test_texts_that_no_file_can_have_are_refused(server: Server, folder: Path):
    row = rows(server, folder)["a.png"]
    for text in ("\ud800", "a\0b"):
        values = {**of(folder), "name": "a.png", "text": text, "stamp": row["stamp"]}
        done = post(server, "/folder/caption", values).json
        assert not done["changed"] and done["refused"]["a.png"], text
    assert post(server, "/folder/caption", {**values, "text": "x" * 1_000_001}).status == 400
    assert rows(server, folder)["a.png"] == row


def test_an_expression_that_never_ends_is_ended(server: Server, folder: Path):
    (folder / "a.txt").write_text("a" * 40 + "!")
    edits = [{"kind": "replace", "find": "(a+)+$", "by": "x", "regex": True}]
    answer = preview(server, folder, edits=edits)
    assert answer.status == 400 and "longer than 10 s" in answer.error
    assert get(server, "/folder/view", **of(folder)).status == 200
    for find, by in {"(": "", "a": r"\9", "": "x", "x" * 1001: ""}.items():
        edits = [{"kind": "replace", "find": find, "by": by, "regex": True}]
        assert preview(server, folder, edits=edits).status == 400, find


def test_ten_thousand_names_in_one_request(server: Server, folder: Path):
    names = ["a.png", *(f"missing-{number:06}.png" for number in range(9_999))]
    shown = post(
        server, "/folder/preview", {**of(folder), "names": names, "edits": [{"kind": "suffix", "text": "!"}]}
    ).json
    assert shown["total"] == 1 and shown["refused_count"] == 9_999 and len(shown["refused"]) == 200
    assert post(server, "/folder/edit", {**of(folder), "token": shown["token"]}).json["changed"] == ["a.png"]
    answer = post(server, "/folder/choose", {**of(folder), "names": [*names, "b.png"], "excluded": True})
    assert answer.status == 400 and "10,000" in answer.error


def test_two_tabs_never_overwrite_each_other(server: Server, folder: Path):
    stamp = rows(server, folder)["a.png"]["stamp"]
    answers: list[dict[str, Any]] = []

    def set_caption(number: int) -> None:
        values = {**of(folder), "name": "a.png", "text": f"tab {number}", "stamp": stamp}
        answers.append(post(server, "/folder/caption", values).json)

    tabs = [threading.Thread(target=set_caption, args=(number,)) for number in range(8)]
    for tab in tabs:
        tab.start()
    for tab in tabs:
        tab.join()
    assert sum(len(answer["changed"]) for answer in answers) == 1
    assert sum(answer["conflict_count"] for answer in answers) == 7
    conflict = next(answer["conflicts"][0] for answer in answers if answer["conflicts"])
    assert conflict["found"] == (folder / "a.txt").read_text() and conflict["stamp"] != stamp
    values = {**of(folder), "name": "a.png", "text": conflict["after"], "stamp": conflict["stamp"]}
    assert post(server, "/folder/caption", values).json["changed"] == ["a.png"], "after the user has seen it"


def test_a_caption_that_appeared_meanwhile_is_a_conflict(server: Server, folder: Path):
    (folder / "a.txt").unlink()
    assert rows(server, folder)["a.png"]["stamp"] == ""
    (folder / "a.txt").write_text("from elsewhere")
    values = {**of(folder), "name": "a.png", "text": "mine", "stamp": ""}
    done = post(server, "/folder/caption", values).json
    assert not done["changed"] and done["conflicts"][0]["found"] == "from elsewhere"
    assert (folder / "a.txt").read_text() == "from elsewhere"


def test_a_folder_that_goes_away_between_preview_and_edit(server: Server, folder: Path):
    token = preview(server, folder).json["token"]
    folder.rename(folder.with_name("moved"))
    answer = post(server, "/folder/edit", {**of(folder), "token": token})
    assert answer.status == 404 and "not found" in answer.error
    assert get(server, "/folder/view", **of(folder)).status == 404
    assert (folder.with_name("moved") / "a.txt").read_text() == "a, red"
    folder.with_name("moved").rename(folder)
    assert len(post(server, "/folder/edit", {**of(folder), "token": token}).json["changed"]) == 3


def test_images_that_go_away_between_preview_and_edit(server: Server, folder: Path):
    token = preview(server, folder).json["token"]
    (folder / "a.png").unlink()
    (folder / "a.txt").unlink()
    done = post(server, "/folder/edit", {**of(folder), "token": token}).json
    assert set(done["changed"]) == {"b.png", "c.png"} and not (folder / "a.txt").exists()
    assert done["conflict_count"] + done["refused_count"] == 1


def test_read_only_files_are_not_written(server: Server, folder: Path):
    (folder / "a.txt").chmod(0o444)
    token = preview(server, folder).json["token"]
    done = post(server, "/folder/edit", {**of(folder), "token": token}).json
    assert set(done["changed"]) == {"b.png", "c.png"} and "read-only" in done["refused"]["a.png"]
    assert (folder / "a.txt").read_text() == "a, red"


def test_a_damaged_choices_file_is_named_and_not_replaced(server: Server, folder: Path):
    (folder / "streamcache.json").write_text("{")
    done = post(server, "/folder/choose", {**of(folder), "names": ["a.png"], "excluded": True}).json
    assert not done["changed"] and "streamcache.json" in done["refused"]["a.png"]
    assert "streamcache.json" in rows(server, folder)["a.png"]["problem"]
    assert (folder / "streamcache.json").read_text() == "{"


def test_names_in_any_unicode_form(server: Server, folder: Path):
    odd = ["日本 語.png", unicodedata.normalize("NFD", "é.png"), "a&b=c#d?.png", "'quoted\".png", "💀.png"]
    for number, name in enumerate(odd):
        write_picture(folder / name, (48, 48), number)
    found = rows(server, folder)
    for name in odd:
        assert found[name]["caption"] == ""
        assert get(server, "/folder/picture", **of(folder), name=name, side=64).status == 200
        other = unicodedata.normalize("NFC", name)
        values = {**of(folder), "name": other, "text": f"of {name}", "stamp": ""}
        assert post(server, "/folder/caption", values).json["changed"] == [name]
        assert (folder / name).with_suffix(".txt").read_text(encoding="utf-8") == f"of {name}"


def test_edits_and_undo_survive_a_restart_and_previews_are_made_again(host: dev.Host, tmp_path: Path):
    install_pack(tmp_path)
    (tmp_path / "models").mkdir()
    folder = tmp_path / "input" / "attacked" / "restart"
    write_folder(folder)
    first = start_server(host, tmp_path)
    try:
        stamp = rows(first, folder)["a.png"]["stamp"]
        values = {**of(folder), "name": "a.png", "text": "before the restart", "stamp": stamp}
        assert post(first, "/folder/caption", values).json["changed"]
        token = preview(first, folder).json["token"]
    finally:
        first.stop()
    second = start_server(host, tmp_path)
    try:
        answer = post(second, "/folder/edit", {**of(folder), "token": token})
        assert answer.status == 409 and "preview again" in answer.error
        assert (folder / "a.txt").read_text() == "before the restart"
        assert post(second, "/folder/undo", of(folder)).json["changed"] == ["a.png"]
        assert (folder / "a.txt").read_text() == "a, red"
    finally:
        second.stop()


@pytest.fixture
def examples(server: Server) -> Iterator[Path]:
    folder = server.base / "custom_nodes" / "streamcache" / "example_images" / "zogglewump"
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before


def test_write_captions_does_not_write_to_the_examples(server: Server, examples: Path):
    graph = Graph(server)
    source = graph.add("StreamCacheImageFolder", folder="examples/zogglewump")
    listed = graph.add("StreamCacheSourceImages", folder="examples/zogglewump", images="all", max_side=32, count=1)
    text = graph.add("StringConcatenate", string_a="mine", string_b="", delimiter="")
    links = {"source": graph(source), "texts": graph(text), "names": graph(listed, 1)}
    graph.add("StreamCacheWriteCaptions", **links, if_exists="replace")
    problem = json.dumps(server.fail(graph.prompt).error)
    assert "read-only" in problem and "add a copy" in problem
