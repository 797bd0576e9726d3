"""docs/openapi.json documents every route of the real server, no others, and their actual responses."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from streamcache import __version__
from streamcache.lora_train import KeptPicture, KeptPictures
from streamcache.nodes.outside.patterns import CACHE_NAME, RUN_NAME
from streamcache.tests.host.asking import Answer, get, post, send_zip, wait_for_job
from streamcache.tests.host.schemas import DOCUMENT, PREFIX, longest_body, operations, parameters, problems, takes_json
from streamcache.tests.host.server import ROOT, Server
from streamcache.tests.support.samples import write_cache

pytestmark = pytest.mark.host

API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def check(answer: Answer, method: str, path: str) -> Any:
    """The JSON of a response, which must match the document."""
    responses = DOCUMENT["paths"][PREFIX + path][method.lower()]["responses"]
    assert str(answer.status) in responses, f"{method} {path}: {answer.status} {answer.data[:200]!r}"
    schema = responses[str(answer.status)]["content"]["application/json"]["schema"]
    assert problems(answer.json, schema) == []
    return answer.json


def test_every_route_is_documented_and_every_documented_route_exists(server: Server):
    registered = {(method, path) for method, path in server.client.get("/probe/routes") if path.startswith(PREFIX)}
    assert registered == {(method, PREFIX + path) for method, path, _ in operations()}


def test_api_md_names_every_route():
    named = set(re.findall(r"`(GET|POST) (/streamcache/[a-z/]+)`", API))
    assert named == {(method, PREFIX + path) for method, path, _ in operations()}


def test_the_document_has_the_version_of_the_pack():
    assert DOCUMENT["openapi"].startswith("3.1") and DOCUMENT["info"]["version"] == __version__


def test_every_schema_is_valid():
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_reference_exists():
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT))
    assert set(names) == set(DOCUMENT["components"]["schemas"])


def test_the_checker_finds_errors():
    good = {"name": "64×64", "samples": 1}
    schema = {"$ref": "#/components/schemas/Bucket"}
    assert problems(good, schema) == []
    for bad in ({**good, "samples": -1}, {**good, "samples": True}, {"name": "a"}, {**good, "more": 1}, [good], None):
        assert problems(bad, schema), bad
    assert problems("x", {"type": "string", "enum": ["y"]})
    assert problems([1, "a"], {"type": "array", "items": {"type": "number"}})


@pytest.fixture(scope="module")
def documented(server: Server) -> Path:
    (server.base / "input" / "documented").mkdir(exist_ok=True)
    Image.new("RGB", (8, 8)).save(server.base / "input" / "documented" / "x.png")
    folder = write_cache(server.base / "output" / "streamcache" / "documented", 3)
    return write_cache(folder, 2)


@pytest.mark.parametrize(
    ("method", "path", "operation"), list(operations()), ids=lambda part: part if isinstance(part, str) else ""
)
def test_parameters_match_the_server(
    server: Server, documented: Path, method: str, path: str, operation: dict[str, Any]
):
    """A missing, invalid or unknown parameter is refused."""
    ask = partial(post, server, path)
    if not takes_json(operation):
        ask = (lambda values: get(server, path, **values)) if method == "GET" else zips(server)
    wanted = parameters(operation)
    right = _right(wanted)
    for name in right:
        answer = ask({key: value for key, value in right.items() if key != name})
        assert answer.status == 400 and answer.error == f"{name}: is missing"
    for name, (_, schema) in wanted.items():
        assert ask({**right, name: _wrong(schema)}).status == 400, name
    answer = ask({**right, "unknown": "1"})
    assert answer.status == 400 and sorted(answer.error.split("expected: ")[1].split(", ")) == (
        sorted(wanted) or ["none"]
    )


def zips(server: Server) -> Callable[[dict[str, Any]], Answer]:
    return lambda values: send_zip(server, b"", **values)


def test_names_that_the_document_allows_are_taken(server: Server):
    """None is refused because of its form: there is just nothing of that name."""

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.from_regex(CACHE_NAME, fullmatch=True), st.from_regex(RUN_NAME, fullmatch=True))
    def ask(cache: str, run: str) -> None:
        assert get(server, "/cache", name=cache).status == 404
        assert get(server, "/run", name=run).status == 404
        assert post(server, "/cache/rename", {"name": cache, "to": cache}).status == 404
        assert post(server, "/run/delete", {"name": run}).status == 404

    ask()


def test_responses_are_as_documented(server: Server, documented: Path):
    folder = documented
    (folder.parent / "unreadable").mkdir()
    (folder.parent / "unreadable" / "dataset.json").write_text("{}")
    name = {"name": "documented"}
    check(get(server, "/cache", **name), "GET", "/cache")
    check(get(server, "/cache/samples", **name, search="caption"), "GET", "/cache/samples")
    check(get(server, "/cache/samples", **name, generation="gone"), "GET", "/cache/samples")
    assert get(server, "/cache/thumbnail", **name, number=0).headers["content-type"] == "image/jpeg"
    check(get(server, "/cache/thumbnail", **name, number=9), "GET", "/cache/thumbnail")
    assert "reason" in check(get(server, "/cache/source", **name, number=0), "GET", "/cache/source")
    check(get(server, "/cache/source", **name, number=9), "GET", "/cache/source")
    plan = check(get(server, "/cache/clean", **name), "GET", "/cache/clean")["plan"]
    check(post(server, "/cache/clean", {**name, "plan": plan, "categories": ["debris"]}), "POST", "/cache/clean")
    check(post(server, "/cache/clean", {**name, "plan": "old", "categories": ["debris"]}), "POST", "/cache/clean")
    for path, values in {"/cache/verify": {}, "/cache/duplicate": {"to": "d2"}, "/cache/export": {"to": "d3"}}.items():
        job = check(post(server, path, {**name, **values}), "POST", path)["job"]
        assert wait_for_job(server, job["id"])["state"] == "done"
    job = check(post(server, "/cache/repair", {**name, "most": 0}), "POST", "/cache/repair")["job"]
    assert wait_for_job(server, job["id"])["state"] == "done"
    check(get(server, "/jobs"), "GET", "/jobs")
    check(post(server, "/job/cancel", {"id": job["id"]}), "POST", "/job/cancel")
    check(post(server, "/job/cancel", {"id": "none"}), "POST", "/job/cancel")
    check(post(server, "/cache/rename", {**name, "to": "d4"}), "POST", "/cache/rename")
    number = check(post(server, "/cache/delete", {"name": "d4"}), "POST", "/cache/delete")["trash"]
    listed = check(get(server, "/caches"), "GET", "/caches")
    assert any(row["problem"] for row in listed["caches"]) and listed["trash"]
    check(post(server, "/trash/restore", {"id": number}), "POST", "/trash/restore")
    number = post(server, "/cache/delete", {"name": "d4"}).json["trash"]
    check(post(server, "/trash/empty", {"ids": [number]}), "POST", "/trash/empty")
    check(post(server, "/trash/empty", {"ids": [number]}), "POST", "/trash/empty")


def test_responses_about_folders_are_as_documented(server: Server):
    Image.new("RGB", (8, 8)).save(server.base / "input" / "x.png")
    begun = check(post(server, "/folder/begin", {"folder": "documented", "bytes": 1}), "POST", "/folder/begin")
    upload = {"upload": begun["upload"]}
    check(send_zip(server, b"no zip", **upload, number=0), "POST", "/folder/zip")
    check(post(server, "/folder/discard", upload), "POST", "/folder/discard")
    check(post(server, "/folder/discard", upload), "POST", "/folder/discard")
    check(send_zip(server, b"no zip", **upload, number=0), "POST", "/folder/zip")
    check(post(server, "/folder/add", {**upload, "folder": "documented"}), "POST", "/folder/add")
    check(post(server, "/folder/begin", {"folder": "../x", "bytes": 1}), "POST", "/folder/begin")
    job = check(post(server, "/folder/example", {"example": "zogglewump"}), "POST", "/folder/example")["job"]
    assert wait_for_job(server, job["id"])["state"] == "done"
    rows = check(get(server, "/folders"), "GET", "/folders")["folders"]
    row = next(row for row in rows if row["name"] == "input/datasets/example_zogglewump")
    cover = {"folder": row["name"], "name": row["covers"][0]}
    assert get(server, "/folder/image", **cover).headers["content-type"] == "image/jpeg"
    check(get(server, "/folder/image", **{**cover, "name": "gone.png"}), "GET", "/folder/image")
    check(get(server, "/jobs"), "GET", "/jobs")


def test_responses_about_curation_are_as_documented(server: Server):
    path = server.base / "input" / "datasets" / "documented_captions"
    path.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 32)).save(path / "x.png")
    (path / "x.txt").write_text("a, b")
    (path / "damaged.png").write_bytes(b"")
    folder = {"folder": "input/datasets/documented_captions"}
    row = check(get(server, "/folder/view", **folder), "GET", "/folder/view")["images"][1]
    check(get(server, "/folder/view", folder="nothing"), "GET", "/folder/view")
    check(get(server, "/folder/view", **folder, alike="true"), "GET", "/folder/view")
    check(get(server, "/folder/charts", **folder), "GET", "/folder/charts")
    check(get(server, "/folder/caption", **folder, name="x.png"), "GET", "/folder/caption")
    check(get(server, "/folder/caption", **folder, name="y.png"), "GET", "/folder/caption")
    assert get(server, "/folder/picture", **folder, name="x.png").headers["content-type"] == "image/jpeg"
    check(get(server, "/folder/picture", **folder, name="damaged.png"), "GET", "/folder/picture")
    check(get(server, "/folder/mask", **folder, name="x.png"), "GET", "/folder/mask")
    edits = {"filter": {"captioned": True}, "edits": [{"kind": "prefix", "text": "c, "}]}
    token = check(post(server, "/folder/preview", {**folder, **edits}), "POST", "/folder/preview")["token"]
    check(post(server, "/folder/edit", {**folder, "token": token}), "POST", "/folder/edit")
    check(post(server, "/folder/edit", {**folder, "token": token}), "POST", "/folder/edit")
    caption = {**folder, "name": "x.png", "text": "d", "stamp": row["stamp"]}
    assert check(post(server, "/folder/caption", caption), "POST", "/folder/caption")["conflicts"]
    check(post(server, "/folder/choose", {**folder, "names": ["x.png"], "excluded": True}), "POST", "/folder/choose")
    check(post(server, "/folder/choose", {**folder, "names": ["y.png"], "repeats": 2}), "POST", "/folder/choose")
    check(post(server, "/folder/undo", folder), "POST", "/folder/undo")
    check(post(server, "/folder/undo", folder), "POST", "/folder/undo")
    check(post(server, "/folder/undo", folder), "POST", "/folder/undo")
    check(get(server, "/folder/alike", **folder), "GET", "/folder/alike")
    job = check(post(server, "/folder/alike", folder), "POST", "/folder/alike")["job"]
    assert wait_for_job(server, job["id"])["state"] == "done"
    check(get(server, "/folder/alike", **folder), "GET", "/folder/alike")
    check(get(server, "/jobs"), "GET", "/jobs")


def test_responses_about_runs_are_as_documented(server: Server):
    write_run(server.base / "output" / "streamcache_runs" / "documented")
    assert check(get(server, "/runs"), "GET", "/runs")["runs"]
    run = check(get(server, "/run", name="documented"), "GET", "/run")
    assert run["curves"]["loss"] and run["samples"]
    picture = get(server, "/run/sample", name="documented", file=run["samples"][0]["file"])
    assert picture.headers["content-type"] == "image/png"
    check(get(server, "/run/sample", name="documented", file="step-00000009-0.png"), "GET", "/run/sample")
    check(get(server, "/run/report", name="documented"), "GET", "/run/report")
    (server.base / "output" / "streamcache_runs" / "documented" / "report.html").write_text("<p>report</p>")
    report = get(server, "/run/report", name="documented")
    assert report.headers["content-type"].startswith("text/html") and report.data == b"<p>report</p>"
    assert report.headers["content-disposition"].startswith("attachment"), "scripts in it must not run here"
    run = check(get(server, "/run", name="documented"), "GET", "/run")
    check(get(server, "/run", name="nothing"), "GET", "/run")
    assert check(get(server, "/runs/stamp"), "GET", "/runs/stamp")["stamp"]
    assert get(server, "/run/table", name="documented").headers["content-type"].startswith("text/csv")
    check(get(server, "/run/table", name="nothing"), "GET", "/run/table")
    check(get(server, "/run/lora", name="documented", file="x.safetensors"), "GET", "/run/lora")
    labels = {"name": "documented", "tags": ["best"], "comment": "good hands"}
    check(post(server, "/run/label", labels), "POST", "/run/label")
    check(post(server, "/run/label", {**labels, "name": "nothing"}), "POST", "/run/label")
    check(post(server, "/run/rename", {"name": "documented", "to": "documented"}), "POST", "/run/rename")
    check(post(server, "/run/rename", {"name": "documented", "to": "documented-2"}), "POST", "/run/rename")
    check(post(server, "/run/rename", {"name": "documented-2", "to": "documented"}), "POST", "/run/rename")
    run = check(get(server, "/run", name="documented"), "GET", "/run")
    assert run["run"]["tags"] == ["best"] and run["run"]["comment"] == "good hands"
    check(post(server, "/run/stop", {"name": "documented"}), "POST", "/run/stop")
    check(post(server, "/run/stop", {"name": "nothing"}), "POST", "/run/stop")
    number = check(post(server, "/run/delete", {"name": "documented"}), "POST", "/run/delete")["trash"]
    check(get(server, "/caches"), "GET", "/caches")
    back = check(post(server, "/trash/restore", {"id": number}), "POST", "/trash/restore")
    assert back == {"name": "documented", "kind": "run"}
    assert check(get(server, "/run", name="documented"), "GET", "/run") == run


def test_responses_about_a_grid_are_as_documented(server: Server):
    folder = server.base / "output" / "streamcache_runs" / "gridded"
    write_run(folder)
    assert check(get(server, "/run/grid", name="gridded"), "GET", "/run/grid")["pictures"] == []
    for number, step in enumerate((None, 500)):
        key = f"{number:032x}"
        row = KeptPicture(key, f"{key}.png", "a cat", "", 1, "cat.safetensors", "cat", step, 0.6, {"steps": 2})
        KeptPictures(folder / "grid").keep(row, torch.zeros(1, 4, 2, 2), torch.zeros(1, 16, 16, 3))
    (_, row) = check(get(server, "/run/grid", name="gridded"), "GET", "/run/grid")["pictures"]
    picture = get(server, "/run/grid/picture", name="gridded", file=row["file"], mtime=row["mtime"])
    assert picture.headers["content-type"] == "image/png" and "immutable" in picture.headers["cache-control"]
    check(get(server, "/run/grid/picture", name="gridded", file=f"{'f' * 32}.png"), "GET", "/run/grid/picture")
    check(get(server, "/run/grid/picture", name="gridded", file="index.json"), "GET", "/run/grid/picture")
    check(get(server, "/run/grid", name="nothing"), "GET", "/run/grid")


def test_refusals_of_bodies_are_as_documented(server: Server):
    for method, path, operation in operations():
        if method == "POST":
            assert "error" in check(post(server, path, **{"Content-Type": "text/plain"}), method, path)
            answer = post(server, path, {"name": "x" * (longest_body(operation) + 1)})
            assert "error" in check(answer, method, path) and answer.status == (413 if takes_json(operation) else 415)
            assert "error" in check(post(server, path, **{"Sec-Fetch-Site": "same-site"}), method, path)
            assert "error" in check(post(server, path, Host="evil.example"), method, path)


def write_run(folder: Path) -> None:
    """A finished run, as the trainer writes it."""
    (folder / "samples").mkdir(parents=True)
    facts = {"status": "done", "step": 3, "steps": 3, "config": {"rank": 4}, "dataset": "", "updated": 1e9}
    (folder / "run.json").write_text(json.dumps(facts))
    rows = [{"step": n, "epoch": 0, "loss": 1 / n, "learning_rate": 1e-4} for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Image.new("RGB", (8, 8)).save(folder / "samples" / "step-00000003-0.png")


def _wrong(schema: dict[str, Any]) -> Any:
    """A value of the right type for a query, but outside what the schema allows."""
    if schema["type"] == "integer":
        return schema.get("maximum", 1 << 60) + 1
    if schema["type"] == "array":
        return [""] * (schema["maxItems"] + 1)
    if schema["type"] == "object":
        return {"unknown": 1}
    if schema["type"] == "boolean" or "enum" in schema:
        return "neither"
    return "x" * (schema.get("maxLength", 2000) + 1)


def _right(wanted: dict[str, tuple[bool, dict[str, Any]]]) -> dict[str, Any]:
    """Required values that the server takes as far as their form goes; there is nothing of these names."""
    plain = {"string": "documented", "integer": 1, "array": ["debris"]}
    right = {name: plain[schema["type"]] for name, (required, schema) in wanted.items() if required}
    return right | ({"edits": [{"kind": "prefix", "text": "x"}]} if "edits" in right else {})
