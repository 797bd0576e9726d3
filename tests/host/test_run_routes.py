"""The routes of training runs on the real server: list, curves, progress, stopping, deleting, and hostile names."""

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from safetensors import safe_open

from streamcache.tests.host.asking import get
from streamcache.tests.host.server import Server, read_json
from streamcache.tests.host.trainings import LONG, run_row, train_graph, train_node, training, until

pytestmark = pytest.mark.host
STEPS = 60


def ask(server: Server, path: str, body: Any = None, method: str = "", **headers: str) -> tuple[int, Any]:
    """The status and the response; bytes if it is not JSON."""
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=300)
    data = None if body is None else json.dumps(body)
    sent = {**({"Content-Type": "application/json"} if body is not None else {}), **headers}
    connection.request(method or ("GET" if body is None else "POST"), "/streamcache" + path, data, sent)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    is_json = answer.headers.get("Content-Type", "").startswith("application/json")
    return answer.status, json.loads(content) if is_json else content


def lora_steps(server: Server, name: str) -> str:
    with safe_open(server.base / "output" / "loras" / f"{name}.safetensors", framework="pt") as file:
        return file.metadata()["ss_steps"]


class TestAFinishedRun:
    @pytest.fixture(scope="class")
    @staticmethod
    def shown(server: Server) -> dict[str, Any]:
        graph = train_graph(server, "routes_done", STEPS, samples=True, sample_every=20, validation_every=20)
        server.succeed(graph.prompt)
        return server.client.get("/streamcache/run?name=routes_done&points=5000&smoothing=0")

    def test_its_row_shows_how_it_ended(self, server: Server, shown: dict[str, Any]):
        row = run_row(server, "routes_done")
        assert row == shown["run"]
        assert (row["status"], row["live"], row["step"], row["steps"]) == ("done", False, STEPS, STEPS)
        assert (row["dataset"], row["lora"]) == ("watched", "routes_done.safetensors")
        assert shown["settings"]["rank"] == 2 and shown["report"] == "streamcache_runs/routes_done/report.html"
        status, report = ask(server, "/run/report?name=routes_done")
        assert status == 200 and report == (server.base / "output" / shown["report"]).read_bytes()

    def test_its_curves_are_the_lines_of_its_metrics_file(self, server: Server, shown: dict[str, Any]):
        path = server.base / "output" / "streamcache_runs" / "routes_done" / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        losses = [[row["step"], pytest.approx(row["loss"], rel=1e-4)] for row in rows if "loss" in row]
        held_out = [[row["step"], pytest.approx(row["validation"], rel=1e-4)] for row in rows if "validation" in row]
        assert shown["curves"]["loss"] == losses and len(losses) == STEPS
        assert shown["curves"]["smooth"] == losses, "smoothing is off"
        assert shown["curves"]["validation"] == held_out and [step for step, _ in held_out] == [0, 20, 40, 60]
        few = server.client.get("/streamcache/run?name=routes_done&points=50")["curves"]["loss"]
        assert len(few) <= 50 and max(few, key=lambda point: point[1]) == max(
            losses, key=lambda point: point[1].expected
        )

    def test_its_sample_images_are_those_in_its_folder(self, server: Server, shown: dict[str, Any]):
        folder = server.base / "output" / "streamcache_runs" / "routes_done" / "samples"
        assert [each["file"] for each in shown["samples"]] == sorted(path.name for path in folder.glob("*.png"))
        assert {each["step"] for each in shown["samples"]} == {0, 20, 40, 60}
        file = shown["samples"][-1]["file"]
        status, picture = ask(server, f"/run/sample?name=routes_done&file={file}")
        assert status == 200 and picture == (folder / file).read_bytes()

    def test_an_image_may_be_cached_only_with_its_own_mtime(self, server: Server, shown: dict[str, Any]):
        picture = shown["samples"][-1]
        path = server.base / "output" / "streamcache_runs" / "routes_done" / "samples" / picture["file"]
        assert picture["mtime"] == str(path.stat().st_mtime_ns)
        asked = {"name": "routes_done", "file": picture["file"]}
        answers = [
            get(server, "/run/sample", **asked, **more) for more in ({"mtime": picture["mtime"]}, {}, {"mtime": "1"})
        ]
        assert ["immutable" in answer.headers["cache-control"] for answer in answers] == [True, False, False]
        assert {answer.data for answer in answers} == {path.read_bytes()}

    def test_its_lora_is_downloaded_whole_or_in_part(self, server: Server, shown: dict[str, Any]):
        assert [(row["file"], row["step"]) for row in shown["exports"]] == [("routes_done.safetensors", STEPS)]
        data = (server.base / "output" / "loras" / "routes_done.safetensors").read_bytes()
        answer = get(server, "/run/lora", name="routes_done", file="routes_done.safetensors")
        assert (answer.status, answer.data) == (200, data)
        assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''routes_done.safetensors"
        part = ask(server, "/run/lora?name=routes_done&file=routes_done.safetensors", Range="bytes=8-99")
        assert part == (206, data[8:100]), "a broken download can go on"

    def test_its_table_has_every_step(self, server: Server, shown: dict[str, Any]):
        status, table = ask(server, "/run/table?name=routes_done")
        rows = [line.split(",") for line in table.decode().splitlines()[1:]]
        assert status == 200 and [int(row[0]) for row in rows] == list(range(STEPS + 1))
        assert [[int(row[0]), pytest.approx(float(row[3]), rel=1e-4)] for row in rows[1:]] == shown["curves"]["loss"]

    def test_its_prompts_and_settings_are_stored(self, shown: dict[str, Any]):
        assert len(shown["prompts"]) == len({sample["prompt"] for sample in shown["samples"]}) and shown["prompts"][0]
        assert shown["host_settings"]["sample_cfg"] == 4.0

    def test_a_refused_resume_changes_nothing_of_it(self, server: Server, shown: dict[str, Any]):
        folders = server.base / "output" / "streamcache_runs" / "routes_done", server.base / "output" / "loras"
        before = [{path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} for folder in folders]
        for changes in ({"rank": 3}, {"adapter": "LoKr"}, {"targets": "nothing_like_this"}):
            graph = train_graph(server, "routes_done", STEPS + 5, mode="resume", **changes)
            assert server.run(graph.prompt).status in ("failed", "refused")
        assert before == [
            {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} for folder in folders
        ]

    def test_it_cannot_be_stopped(self, server: Server, shown: dict[str, Any]):
        status, answer = ask(server, "/run/stop", {"name": "routes_done"})
        assert status == 409 and "not training on this server" in answer["error"]


class TestALiveRun:
    @pytest.fixture(scope="class")
    @staticmethod
    def stopped(server: Server) -> dict[str, Any]:
        graph = train_graph(server, "routes_live")
        with training(server, graph) as outcome:
            live = run_row(server, "routes_live")
            shown = server.client.get("/streamcache/run?name=routes_live&points=5000")
            later = until(lambda: (row := run_row(server, "routes_live")) and row["step"] > live["step"] and row)
            deleted = ask(server, "/run/delete", {"name": "routes_live"})
            again = ask(server, "/run/stop", {"name": "routes_live"})
            until(lambda: outcome)
        return {
            "graph": graph,
            "live": live,
            "shown": shown,
            "later": later,
            "again": again,
            "deleted": deleted,
            "outcome": outcome[0],
        }

    def test_its_progress_is_shown(self, stopped: dict[str, Any]):
        live = stopped["live"]
        assert live["live"] and live["status"] == "running" and live["steps"] == LONG
        assert 1 <= live["samples_per_second"] / live["rate"] <= 2, "batches have 1 or 2 rows"
        assert live["memory"] > 1e6 and 0 <= live["data_wait"] <= 1 and live["time_left"] > 0
        assert live["node"] is None, "only the page that queued it learns its node"
        losses = stopped["shown"]["curves"]["loss"]
        assert [step for step, _ in losses] == list(range(1, len(losses) + 1)) and len(losses) >= live["step"]

    def test_stopping_ends_the_node_normally_saves_the_lora_and_explains_how_to_resume(
        self, server: Server, stopped: dict[str, Any]
    ):
        assert stopped["again"] == (200, {}) and stopped["outcome"].status == "done"
        row = run_row(server, "routes_live")
        assert (row["status"], row["live"]) == ("stopped", False)
        assert (
            row["step"] >= stopped["later"]["step"] and row["lora"] == f"routes_live-step{row['step']:08}.safetensors"
        )
        assert lora_steps(server, row["lora"].removesuffix(".safetensors")) == str(row["step"])
        shown = stopped["outcome"].outputs[train_node(stopped["graph"])]
        expected = f"Stopped at step {row['step']:,} of {LONG:,}; the unfinished LoRA is saved as {row['lora']}. "
        assert shown["text"] == [expected + "To continue, run again with mode = resume"]
        assert shown["streamcache"][0]["stopped"] and shown["streamcache"][0]["run"] == "routes_live"

    def test_it_is_not_deleted(self, stopped: dict[str, Any]):
        status, answer = stopped["deleted"]
        assert status == 409 and "stop it first" in answer["error"]

    def test_a_stopped_run_can_be_resumed(self, server: Server, stopped: dict[str, Any]):
        at = run_row(server, "routes_live")["step"]
        graph = train_graph(server, "routes_live", at + 5, mode="resume")
        server.succeed(graph.prompt)
        row = run_row(server, "routes_live")
        assert (row["status"], row["step"]) == ("done", at + 5)

    def test_a_run_whose_server_died_is_shown_as_interrupted(self, server: Server, stopped: dict[str, Any]):
        path = server.base / "output" / "streamcache_runs" / "routes_live" / "run.json"
        before = path.read_text(encoding="utf-8")
        path.write_text(json.dumps({**read_json(path), "status": "running"}), encoding="utf-8")
        try:
            assert run_row(server, "routes_live")["status"] == "interrupted"
        finally:
            path.write_text(before, encoding="utf-8")


def test_a_deleted_run_is_in_the_trash_until_it_is_restored(server: Server):
    folder = server.base / "output" / "streamcache_runs" / "routes_deleted"
    server.succeed(train_graph(server, "routes_deleted", 3).prompt)
    before = server.client.get("/streamcache/run?name=routes_deleted")
    status, answer = ask(server, "/run/delete", {"name": "routes_deleted"})
    assert status == 200 and not folder.exists() and not run_row(server, "routes_deleted")
    assert (server.base / "output" / "loras" / "routes_deleted.safetensors").is_file(), "its LoRA stays"
    trash = server.client.get("/streamcache/caches")["trash"]
    assert [(row["kind"], row["name"]) for row in trash if row["id"] == answer["trash"]] == [("run", "routes_deleted")]
    assert ask(server, "/run/delete", {"name": "routes_deleted"})[0] == 404
    assert ask(server, "/trash/restore", {"id": answer["trash"]}) == (200, {"name": "routes_deleted", "kind": "run"})
    assert server.client.get("/streamcache/run?name=routes_deleted") == before


ATTACKS = ["../../x", "..", "/etc/passwd", "C:\\x", "a/b", "", "nul\0", "x" * 300, "~", "%2e%2e"]


@pytest.mark.parametrize("name", ATTACKS)
def test_a_name_that_points_elsewhere_is_refused(server: Server, name: str):
    paths = [f"/run?name={quote(name)}", f"/run/report?name={quote(name)}"]
    for path in (*paths, f"/run/sample?name={quote(name)}&file=step-00000000-0.png"):
        status, answer = ask(server, path)
        assert 400 <= status < 500 and answer["error"]
    status, answer = ask(server, f"/run/lora?name={quote(name)}&file=x.safetensors")
    assert 400 <= status < 500 and answer["error"]
    for path, more in {
        "/run/stop": {},
        "/run/delete": {},
        "/run/label": {"tags": []},
        "/run/rename": {"to": "x"},
    }.items():
        assert 400 <= ask(server, path, {"name": name, **more})[0] < 500
    if "%" not in name:  # which is a plain character in JSON
        assert 400 <= ask(server, "/run/rename", {"name": "routes_live", "to": name})[0] < 500


@pytest.mark.parametrize(
    "query",
    [
        *("", "points=50", "name=x&points=49", "name=x&points=5001", "name=x&points=-1", "name=x&points=1e9"),
        *("name=x&smoothing=1000", "name=x&smoothing=0.5", "name=x&name=x", "name=x&other=1", "name=not_there"),
    ],
)
def test_parameters_out_of_range_are_refused(server: Server, query: str):
    status, answer = ask(server, f"/run?{query}")
    assert 400 <= status < 500 and answer["error"]


def test_other_methods_and_other_sites_are_refused(server: Server):
    assert ask(server, "/run/stop")[0] == 405
    assert ask(server, "/runs", {})[0] == 405
    assert ask(server, "/run/stop", {"name": "x"}, Origin="http://evil.example")[0] == 403
    assert ask(server, "/run/stop", {"name": 3})[0] == 400
    assert ask(server, "/run/sample?name=routes_done&file=../run.json")[0] == 400
