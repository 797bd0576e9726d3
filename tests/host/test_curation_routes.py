"""Curation over HTTP, on the real server: what a page shows of a folder, edits with preview, conflicts and undo."""

import io
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from streamcache.tests.host.asking import Answer, get, post, wait_for_job
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.host

FOLDER = "input/datasets/curated"
CAPTIONS = {"a.png": "a cat, red", "b.png": "a dog, red\ntwo dogs", "c.png": "", "10_birds/d.png": "a bird"}


@pytest.fixture
def folder(server: Server) -> Iterator[Path]:
    """Four images with captions; one of them is in a subfolder that repeats."""
    path = server.base / "input" / "datasets" / "curated"
    shutil.rmtree(path, ignore_errors=True)
    for number, (name, caption) in enumerate(CAPTIONS.items()):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        draw(file, number)
        if caption:
            file.with_suffix(".txt").write_text(caption, encoding="utf-8")
    while post(server, "/folder/undo", {"folder": FOLDER}).status == 200:
        pass  # edits of an earlier test in a folder of the same name
    yield path
    shutil.rmtree(path, ignore_errors=True)


def draw(file: Path, seed: int) -> None:
    """Noise, which looks like no other."""
    Image.frombytes("L", (12, 12), random.Random(seed).randbytes(144)).resize((96, 96)).convert("RGB").save(file)


def view(server: Server, **values: Any) -> dict[str, Any]:
    answer = get(server, "/folder/view", folder=FOLDER, **values)
    assert answer.status == 200, answer.data
    return answer.json


def rows(server: Server, **values: Any) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in view(server, **values)["images"]}


def edit(server: Server, path: str, **values: Any) -> Answer:
    return post(server, path, {"folder": FOLDER, **values})


def captions(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).with_suffix(".png").as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.txt"))
    }


def test_a_folder_is_shown_page_by_page(server: Server, folder: Path):
    found = view(server)
    assert (found["folder"], found["total"], found["all"], found["locked"]) == (FOLDER, 4, 4, "")
    row = next(row for row in found["images"] if row["name"] == "b.png")
    assert row["caption"] == "a dog, red\ntwo dogs" and row["lines"] == 2 and not row["cut"]
    assert row["bucket"] == "1024×1024" and row["repeats"] == 1 and not row["excluded"] and not row["mask"]
    names = [row["name"] for row in found["images"]]
    pages = [view(server, start=start, count=2)["images"] for start in (0, 2, 4)]
    assert [row["name"] for page in pages for row in page] == names
    assert view(server)["state"] == found["state"]


def test_filters_and_orders(server: Server, folder: Path):
    assert set(rows(server, search="RED")) == {"a.png", "b.png"}
    assert set(rows(server, tag="red", search="dog")) == {"b.png"}
    assert set(rows(server, captioned="false")) == {"c.png"}
    assert next(iter(rows(server, order="caption length", descending="true"))) == "b.png"
    assert set(rows(server, bucket="64×64", resolution=64)) == set(CAPTIONS)
    assert get(server, "/folder/view", folder=FOLDER, order="beauty").status == 400
    answer = get(server, "/folder/view", folder=FOLDER, order="similarity")
    assert answer.status == 409 and "look-alikes" in answer.error


def test_a_caption_is_set_and_undone(server: Server, folder: Path):
    row = rows(server)["a.png"]
    done = edit(server, "/folder/caption", name="a.png", text="one\ntwo", stamp=row["stamp"]).json
    assert done["changed"] == ["a.png"] and not done["conflicts"] and "a.png" in done["undo"]
    assert (folder / "a.txt").read_text() == "one\ntwo"
    changed = rows(server)["a.png"]
    assert changed["caption"] == "one\ntwo" and changed["lines"] == 2 and changed["stamp"] != row["stamp"]
    undone = edit(server, "/folder/undo").json
    assert undone["changed"] == ["a.png"] and undone["undo"] == "" and captions(folder)["a.png"] == "a cat, red"
    answer = edit(server, "/folder/undo")
    assert answer.status == 404 and "nothing to undo" in answer.error


def test_an_edit_is_previewed_and_then_exactly_that_is_written(server: Server, folder: Path):
    edits = [{"kind": "replace", "find": "red", "by": "blue"}, {"kind": "append_tag", "text": "photo"}]
    shown = edit(server, "/folder/preview", filter={"captioned": True}, edits=edits).json
    assert shown["total"] == 3 and captions(folder) == {name: text for name, text in CAPTIONS.items() if text}
    assert {"name": "a.png", "before": "a cat, red", "after": "a cat, blue, photo"} in shown["changes"]
    (folder / "b.txt").write_text("changed elsewhere")
    done = edit(server, "/folder/edit", token=shown["token"]).json
    assert set(done["changed"]) == {"a.png", "10_birds/d.png"}
    (conflict,) = done["conflicts"]
    assert conflict["name"] == "b.png" and conflict["found"] == "changed elsewhere"
    assert conflict["after"] == "a dog, blue, photo\ntwo dogs, photo"
    assert captions(folder)["b.png"] == "changed elsewhere" and captions(folder)["a.png"] == "a cat, blue, photo"
    answer = edit(server, "/folder/edit", token=shown["token"])
    assert answer.status == 409 and "preview again" in answer.error


def test_images_are_excluded_and_repeated(server: Server, folder: Path):
    assert edit(server, "/folder/choose", names=["a.png"], excluded=True).json["changed"] == ["a.png"]
    edit(server, "/folder/choose", filter={"search": "bird"}, repeats=3)
    found = rows(server)
    assert found["a.png"]["excluded"] and found["10_birds/d.png"]["repeats"] == 3
    assert set(rows(server, excluded="true")) == {"a.png"}
    charts = get(server, "/folder/charts", folder=FOLDER).json
    assert charts["counts"] == {
        "images": 4,
        "captioned": 3,
        "excluded": 1,
        "masked": 0,
        "problems": 0,
        "samples": 2 + 10 * 3,
    }
    assert {row["folder"]: row["samples"] for row in charts["sets"]} == {"": 2, "10_birds": 30}
    assert charts["undo"] and charts["buckets"] == [["1024×1024", 3]]
    assert edit(server, "/folder/choose", names=["a.png"]).status == 400


def test_pictures_and_masks(server: Server, folder: Path):
    Image.new("RGB", (300, 150), "red").save(folder / "wide.png")
    Image.new("L", (100, 50), 200).save(folder / "wide-masklabel.png")
    answer = get(server, "/folder/picture", folder=FOLDER, name="wide.png", side=128, stamp="1")
    assert "immutable" in answer.headers["cache-control"]
    assert Image.open(io.BytesIO(answer.data)).size == (128, 64)
    mask = Image.open(io.BytesIO(get(server, "/folder/mask", folder=FOLDER, name="wide.png", side=128).data))
    assert (mask.format, mask.mode, mask.size, mask.getpixel((9, 9))) == ("PNG", "L", (128, 64), 200)
    assert get(server, "/folder/mask", folder=FOLDER, name="a.png").status == 404
    Image.new("RGBA", (100, 50), (9, 9, 9, 77)).save(folder / "clear.png")
    mask = Image.open(io.BytesIO(get(server, "/folder/mask", folder=FOLDER, name="clear.png").data))
    assert (mask.mode, mask.size, mask.getpixel((9, 9))) == ("L", (100, 50), 77)


def test_buckets_and_crops_follow_the_settings_of_the_encode_node(server: Server, folder: Path):
    Image.new("RGB", (200, 100)).save(folder / "wide.png")
    square = rows(server, resolution=64, step=8, min_aspect=1, max_aspect=1)["wide.png"]
    assert (square["bucket"], square["crop"]) == ("64×64", [0.25, 0, 0.75, 1])
    assert rows(server, resolution=64, step=8, crop="random")["wide.png"]["crop"] is None
    assert rows(server, resolution=1024, step=8, upscale="false")["wide.png"]["bucket"] == "200×96"
    for wrong in ({"step": 9}, {"crop": "left"}, {"min_aspect": "nan"}, {"max_aspect": 0.5}, {"resolution": 1}):
        assert get(server, "/folder/view", folder=FOLDER, **wrong).status == 400
    assert get(server, "/folder/picture", folder=FOLDER, name="../x.png").status == 404


def test_look_alikes_are_found_by_a_job(server: Server, folder: Path):
    shutil.copyfile(folder / "a.png", folder / "copy.png")
    assert get(server, "/folder/alike", folder=FOLDER).json == {"ready": False, "groups": []}
    job = wait_for_job(server, edit(server, "/folder/alike").json["job"]["id"])
    assert job["state"] == "done" and job["counts"]["groups"] >= 1, job
    found = get(server, "/folder/alike", folder=FOLDER).json
    assert found["ready"] and any({"a.png", "copy.png"} <= set(group) for group in found["groups"])
    assert {"a.png", "copy.png"} <= set(rows(server, alike="true", order="similarity"))
    edit(server, "/folder/choose", names=["copy.png"], excluded=True)
    assert rows(server, alike="true")["copy.png"]["excluded"], "choices and captions do not change pictures"
    os.remove(folder / "copy.png")
    assert not get(server, "/folder/alike", folder=FOLDER).json["ready"]


def test_the_examples_of_the_pack_are_not_edited(server: Server):
    name = "examples/zogglewump"
    found = get(server, "/folder/view", folder=name).json
    row = found["images"][0]
    assert "add a copy" in found["locked"] and "add a copy" in row["locked"]
    for path, values in {
        "/folder/caption": {"name": row["name"], "text": "mine", "stamp": row["stamp"]},
        "/folder/choose": {"names": [row["name"]], "excluded": True},
        "/folder/undo": {},
    }.items():
        answer = post(server, path, {"folder": name, **values})
        assert answer.status == 400 and "read-only" in answer.error and "add a copy" in answer.error
    values = {"folder": name, "filter": {}, "edits": [{"kind": "prefix", "text": "x"}]}
    shown = post(server, "/folder/preview", values).json
    assert shown["total"] == 0 and shown["refused_count"] == found["all"]
    assert get(server, "/folder/view", folder=name).json["state"] == found["state"]


def test_a_large_folder_is_shown_before_it_is_read(server: Server):
    name = f"large {time.time_ns()}"  # the server has not read it yet
    path, folder = server.base / "input" / "datasets" / name, f"input/datasets/{name}"
    path.mkdir(parents=True)
    try:
        draw(path / "a.png", 1)
        (path / "a.txt").write_text("a cat")
        for number in range(3000):
            os.link(path / "a.png", path / f"x{number:04}.png")
        first = get(server, "/folder/view", folder=folder, count=2).json
        assert first["all"] == first["total"] == 3001 and first["reading"]
        assert [(row["name"], row["caption"]) for row in first["images"]] == [("a.png", "a cat"), ("x0000.png", "")]
        jobs = [job for job in get(server, "/jobs").json["jobs"] if (job["kind"], job["name"]) == ("read", folder)]
        assert len(jobs) == 1, "a job reads the rest"
        last = get(server, "/folder/view", folder=folder, state=first["state"], start=3000, count=1).json
        assert last["images"][0]["name"] == "x2999.png"
        while (answer := get(server, "/folder/view", folder=folder, captioned="true")).status != 200:
            assert answer.status == 409 and "its images are being read" in answer.json["error"]
            time.sleep(0.05)
        assert answer.json["total"] == 1 and not answer.json["reading"]
        done = wait_for_job(server, jobs[0]["id"])
        assert done["state"] == "done" and done["words"] == "Read 3,001 images"
        assert get(server, "/folder/charts", folder=folder).json["counts"]["images"] == 3001
    finally:
        shutil.rmtree(path)
