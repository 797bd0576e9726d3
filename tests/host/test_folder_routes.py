"""Adding images over HTTP, to the real server: ComfyUI's own upload for files, ours for zips, and what hostile or
interrupted ones leave behind."""

import io
import json
import os
import shutil
import socket
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from streamcache.tests.dataset_cache.intake.zips import picture, write_link_zip, write_zip
from streamcache.tests.host.asking import Answer, get, post, send, send_zip, snapshot, wait_for_job
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.host

NAMES = [
    *("..", "../x", "a/../x", "/etc", "//x", "..\\x", "C:\\x", "C:x", "\\\\server\\x", "con", "nul.txt", "x.", "x/ y"),
    *(
        ".hidden",
        "x/.adding-0",
        "a\0b",
        "a\nb",
        "\ud800",
        "a<b",
        "a|b",
        "a*",
        "?",
        "",
        "  ",
        "x" * 121,
        "/".join("x" * 9),
    ),
    *("é" * 119, "input/..", "input/../x", "input//x", "input/out", "input/out/x", "taken.png", "input/file.png"),
]


@pytest.fixture
def datasets(server: Server) -> Iterator[Path]:
    folder = server.base / "input" / "datasets"
    shutil.rmtree(folder, ignore_errors=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def begin(server: Server, folder: str = "cats", size: int = 1000) -> dict[str, Any]:
    return post(server, "/folder/begin", {"folder": folder, "bytes": size}).json


def upload_file(server: Server, begun: Mapping[str, Any], name: str, data: bytes, number: int = 0) -> Answer:
    """As the page does it: through ComfyUI's own route."""
    above, _, base = name.rpartition("/")
    parts = {"type": b"input", "subfolder": f"{begun['subfolder']}/{above}".rstrip("/").encode()}
    body = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (key.encode(), value)
        for key, value in parts.items()
    )
    body += b'--x\r\nContent-Disposition: form-data; name="image"; filename="%s"\r\n\r\n' % (
        f"{number:06}-{base}".encode()
    )
    body += data + b"\r\n--x--\r\n"
    return send(server, "POST", "/upload/image", body, {"Content-Type": "multipart/form-data; boundary=x"})


def finish(server: Server, begun: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    values = {"upload": begun["upload"], "folder": begun["folder"], **more}
    return wait_for_job(server, post(server, "/folder/add", values).json["job"]["id"])


def add_zip(server: Server, files: Mapping[str, bytes], tmp_path: Path, folder: str = "cats") -> dict[str, Any]:
    begun = begin(server, folder)
    data = write_zip(tmp_path / "a.zip", files).read_bytes()
    assert send_zip(server, data, upload=begun["upload"], number=0).json == {"bytes": len(data)}
    return finish(server, begun)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_files_through_comfyuis_own_route_become_a_folder_with_captions(server: Server, datasets: Path):
    begun = begin(server)
    assert begun["folder"] == "input/datasets/cats" and begun["images"] == 0 and begun["file_bytes"] == 100 << 20
    for number, (name, data) in enumerate({"a.png": picture(1), "a.txt": b"one", "sub/b.png": picture(2)}.items()):
        assert upload_file(server, begun, name, data, number).status == 200
    listed = {folder["name"] for folder in get(server, "/folders").json["folders"]}
    assert "examples/zogglewump" in listed
    assert not any("cats" in name or ".adding" in name for name in listed), "what is not complete is not listed"
    job = finish(server, begun)
    assert job["state"] == "done" and job["problems"] == []
    assert {name: job["counts"][name] for name in ("images", "captions", "renamed")} == {
        "images": 2,
        "captions": 1,
        "renamed": 0,
    }
    assert names(datasets) == ["cats/a.png", "cats/a.txt", "cats/sub/b.png"]
    found = get(server, "/folders").json
    row = next(row for row in found["folders"] if row["name"] == "input/datasets/cats")
    assert (row["name"], row["images"], row["captions"], row["writable"]) == ("input/datasets/cats", 2, 1, True)
    assert "input/datasets/cats" in found["names"] and not any(".adding" in name for name in found["names"])
    answer = get(server, "/folder/image", folder=row["name"], name=row["covers"][1], stamp="1")
    assert answer.status == 200 and "immutable" in answer.headers["cache-control"]
    assert Image.open(io.BytesIO(answer.data)).format == "JPEG"


def test_the_node_takes_the_new_folder(server: Server, datasets: Path, tmp_path: Path):
    add_zip(server, {"a.png": picture(1)}, tmp_path)
    # ComfyUI asks for the list often; it is searched again after a second.
    wait_for(lambda: "input/datasets/cats" in json.dumps(server.client.get("/object_info/StreamCacheImageFolder")))


def test_a_zip_is_unpacked_and_what_is_not_taken_is_named(server: Server, datasets: Path, tmp_path: Path):
    files = {"cats/a.png": picture(1), "cats/a.txt": b"one", "cats/two/a.png": picture(2), "cats/run.exe": b"MZ"}
    files |= {"cats/bad.png": b"text", "cats/empty.jpg": b"", "../up.png": picture(3), "C:\\x.png": picture(4)}
    job = add_zip(server, files, tmp_path)
    assert job["state"] == "done" and job["counts"]["images"] == 2 and job["problem_count"] == 5
    assert {problem["place"] for problem in job["problems"]} == {
        "cats/run.exe",
        "bad.png",
        "empty.jpg",
        "../up.png",
        "C:/x.png",
    }
    assert names(datasets) == ["cats/a.png", "cats/a.txt", "cats/two/a.png"]
    assert os.listdir(datasets) == ["cats"]


def test_ten_thousand_files_in_a_zip(server: Server, datasets: Path, tmp_path: Path):
    data = picture(7)
    files = {f"{number:05}.{end}": each for number in range(5000) for end, each in (("png", data), ("txt", b"x"))}
    job = add_zip(server, files, tmp_path)
    assert (job["counts"]["images"], job["counts"]["captions"], job["problem_count"]) == (5000, 5000, 0)


def test_hostile_zips_leave_nothing(server: Server, datasets: Path, tmp_path: Path):
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        zeros = bytes(64 << 20)
        for number in range(8):
            archive.writestr(f"{number}.png", zeros)
    link = write_link_zip(tmp_path / "link.zip", "a.png", "/etc/passwd").read_bytes()
    for data, expected in ((bomb.getvalue(), "would unpack to"), (b"", "not a zip"), (b"PK\5\6" * 9, "not a zip")):
        begun = begin(server)
        assert send_zip(server, data, upload=begun["upload"], number=0).status == 200
        job = finish(server, begun)
        assert job["state"] == "failed" and expected in job["error"]
        assert os.listdir(datasets) == []
    begun = begin(server)
    send_zip(server, link, upload=begun["upload"], number=0)
    job = finish(server, begun)
    assert job["problems"] == [{"kind": "skipped", "place": "a.png", "words": "a link or a device"}]
    assert os.listdir(datasets) == []


def test_an_interrupted_upload_leaves_no_file(server: Server, datasets: Path):
    begun = begin(server)
    before = snapshot(datasets)
    printed = len(server.printed())
    target = f"/streamcache/folder/zip?upload={begun['upload']}&number=0"
    head = f"POST {target} HTTP/1.1\r\nHost: {urlsplit(server.address).netloc}\r\nContent-Type: application/zip\r\n"
    for length in ("Content-Length: 3000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n100000\r\n"):
        with socket.create_connection(urlsplit(server.address).netloc.split(":")) as connection:
            connection.sendall(head.encode() + length.encode() + bytes(100_000))
            wait_for(lambda: len(snapshot(datasets)) > len(before))
        wait_for(lambda: snapshot(datasets) == before)
    assert post(server, "/folder/discard", {"upload": begun["upload"]}).status == 200
    assert os.listdir(datasets) == []
    assert "Traceback" not in server.printed()[printed:]


def test_an_interrupted_file_leaves_no_file(server: Server, datasets: Path):
    begun = begin(server)
    before = snapshot(datasets)
    head = f"POST /upload/image HTTP/1.1\r\nHost: {urlsplit(server.address).netloc}\r\nContent-Length: 300000\r\n"
    head += 'Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\nContent-Disposition: form-data; name="image"; '
    with socket.create_connection(urlsplit(server.address).netloc.split(":")) as connection:
        connection.sendall((head + 'filename="0-a.png"\r\n\r\n').encode() + bytes(100_000))
    assert get(server, "/folders").status == 200
    assert snapshot(datasets) == before
    assert finish(server, begun)["counts"]["images"] == 0
    assert os.listdir(datasets) == []


def test_name_clashes_are_solved_as_chosen(server: Server, datasets: Path, tmp_path: Path):
    add_zip(server, {"a.png": picture(1), "a.txt": b"one"}, tmp_path)
    job = add_zip(server, {"a.png": picture(2), "a.txt": b"two", "A.png": picture(3)}, tmp_path)
    assert job["counts"]["renamed"] == 2
    found = names(datasets / "cats")
    assert len(found) == 5 and len({name.lower() for name in found}) == 5
    begun = begin(server)
    assert begun["images"] == 3
    upload_file(server, begun, "a.txt", b"new")
    assert finish(server, begun, if_exists="replace")["counts"]["replaced"] == 1
    assert (datasets / "cats" / "a.txt").read_bytes() == b"new"


def test_an_upload_is_discarded_or_used_once(server: Server, datasets: Path):
    begun = begin(server)
    upload_file(server, begun, "a.png", picture(1))
    assert post(server, "/folder/discard", {"upload": begun["upload"]}).status == 200
    assert os.listdir(datasets) == []
    for path, values in {"/folder/add": {"folder": "cats"}, "/folder/discard": {}}.items():
        assert post(server, path, {"upload": begun["upload"], **values}).status == 404
    assert send_zip(server, b"PK", upload=begun["upload"], number=0).status == 404
    begun = begin(server)
    upload_file(server, begun, "a.png", picture(1))
    finish(server, begun)
    assert post(server, "/folder/add", {"upload": begun["upload"], "folder": "cats"}).status == 404


def test_a_job_can_be_canceled(server: Server, datasets: Path, tmp_path: Path):
    begun = begin(server)
    data = write_zip(tmp_path / "a.zip", {f"{n:05}.png": picture(n) for n in range(20_000)}).read_bytes()
    send_zip(server, data, upload=begun["upload"], number=0)
    number = post(server, "/folder/add", {"upload": begun["upload"], "folder": "cats"}).json["job"]["id"]
    post(server, "/job/cancel", {"id": number})
    assert wait_for_job(server, number)["state"] == "cancelled"
    assert not any(name.startswith(".adding") for name in os.listdir(datasets))


@pytest.mark.parametrize("name", NAMES)
def test_folder_names_cannot_point_elsewhere(server: Server, datasets: Path, tmp_path: Path, name: str):
    outside = server.base / "input" / "out"
    if not outside.exists():
        outside.symlink_to(tmp_path)
    datasets.mkdir(parents=True)
    for taken in (datasets / "taken.png", server.base / "input" / "file.png"):
        taken.write_bytes(b"")
    before = snapshot(server.base)
    for path, more in {"/folder/begin": {"bytes": 1}, "/folder/add": {"upload": "0" * 16}}.items():
        answer = post(server, path, {"folder": name, **more})
        assert 400 <= answer.status < 500 and answer.error, (path, name)
    assert snapshot(server.base) == before
    outside.unlink()


def test_image_names_cannot_point_elsewhere(server: Server, datasets: Path, tmp_path: Path):
    add_zip(server, {"a.png": picture(1)}, tmp_path)
    folder = datasets / "cats"
    (tmp_path / "secret.png").write_bytes(picture(9))
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "text.png").write_text("not an image")
    (server.base / "input" / "loose.png").write_bytes(picture(1))
    odd = [
        "../../loose.png",
        "..\\a.png",
        "/etc/passwd",
        "link.png",
        "a.txt",
        "",
        ".",
        "sub/../a.png",
        "a.png\0",
        "x.png",
    ]
    for name in [*odd, "text.png", "\ud800.png", "x" * 1999 + ".png", "a.png/x.png"]:
        answer = get(server, "/folder/image", folder="input/datasets/cats", name=name)
        assert 400 <= answer.status < 500 and answer.error, name
    for odd_folder in ("..", "input", "input/..", "/", "input/datasets/gone"):
        answer = get(server, "/folder/image", folder=odd_folder, name="a.png")
        assert 400 <= answer.status < 500, odd_folder


def test_pages_of_other_sites_cannot_send_a_zip(server: Server, datasets: Path):
    begun = begin(server)
    target = f"/streamcache/folder/zip?upload={begun['upload']}&number=0"
    zipped = {"Content-Type": "application/zip"}
    assert send(server, "POST", target, b"PK", {**zipped, "Sec-Fetch-Site": "cross-site"}).status == 403
    assert send(server, "POST", target, b"PK", {**zipped, "Host": "evil.example"}).status == 403
    assert send(server, "POST", target, b"PK", {"Content-Type": "text/plain"}).status == 415
    assert names(datasets) == []


def test_a_disk_that_is_too_full_is_refused_at_the_start(server: Server, datasets: Path):
    answer = post(server, "/folder/begin", {"folder": "cats", "bytes": 1 << 40})
    if shutil.disk_usage(server.base).free > 1 << 40:
        pytest.skip("this disk has more than a terabyte of free space")
    assert answer.status == 400 and "the disk is too full" in answer.error
    assert names(datasets) == []


def test_the_example_is_added_once(server: Server, datasets: Path):
    for expected in (12, 0):
        job = wait_for_job(server, post(server, "/folder/example", {"example": "zogglewump"}).json["job"]["id"])
        assert job["state"] == "done" and job["counts"]["images"] == expected and job["problem_count"] == 0
    assert len(names(datasets / "example_zogglewump")) == 24


def test_many_folders_at_once_do_not_stop_the_server(server: Server, datasets: Path):
    for number in range(600):
        folder = datasets / f"set{number:04}"
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(picture(number))
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(get(server, "/folders"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(answer.json["folders"]) for answer in answers] == [500] * 4


def wait_for(condition: Any, tries: int = 3000) -> None:
    for _ in range(tries):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not happen")
