"""`streamcache run` against the real server, as a user or a script runs it."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from streamcache.cli.main import main
from streamcache.tests.host.graph import Graph, save_folder
from streamcache.tests.host.pictures import write_picture
from streamcache.tests.host.server import Server
from streamcache.tests.host.test_dataset_nodes import cache_path, write_lists
from streamcache.tests.support.package import run_python

pytestmark = pytest.mark.host


@pytest.fixture
def workflow(server: Server, tmp_path: Path) -> Path:
    write_lists(cache_path(server, "run"), 3)
    graph = Graph(server)
    load = graph.add("StreamCacheCacheLoad", name="run")
    chosen = graph.add("StreamCacheSelect", dataset=graph(load))
    graph.add("StreamCacheCacheSave", name="run copy", dataset=graph(chosen))
    graph.prompt["3"]["_meta"] = {"title": "Save it"}
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(graph.prompt))
    return path


def test_a_workflow_runs_and_its_results_are_printed(server: Server, workflow: Path, capsys: pytest.CaptureFixture):
    assert main(["run", str(workflow), "--server", server.address]) == 0
    output, steps = capsys.readouterr()
    assert "3 Save it:" in output and "3 samples in 1 bucket," in output
    assert "2 StreamCacheSelect" in steps


def test_inputs_can_be_changed_and_results_are_json(server: Server, workflow: Path, capsys: pytest.CaptureFixture):
    changes = ["--set", "2.limit=2", "--set", "Save it.name=run two"]
    assert main(["run", str(workflow), "--server", server.address, "--json", *changes]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"] == "done"
    assert facts["outputs"]["3"]["streamcache"][0] | {"generation": ""} == {
        "name": "run two", "samples": 2, "bytes": facts["outputs"]["3"]["streamcache"][0]["bytes"],
        "buckets": {"16×8×8": 2}, "generation": "",
    }  # fmt: skip


def test_a_refused_or_failed_workflow_exits_with_1_and_names_the_node(
    server: Server, workflow: Path, capsys: pytest.CaptureFixture
):
    arguments = ["run", str(workflow), "--server", server.address]
    assert main([*arguments, "--set", "1.name=../x"]) == 1
    assert "Refused: 1 StreamCacheCacheLoad" in capsys.readouterr().out
    assert main([*arguments, "--set", "2.caption=unicorn"]) == 1
    assert "Failed: 2 StreamCacheSelect: none of 3 samples matches" in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="Windows lacks this signal")
def test_ctrl_c_stops_the_workflow_on_the_server_too(server: Server, tmp_path: Path):
    folder = server.base / "input" / "many"
    folder.mkdir()
    for number in range(400):  # enough that they are not finished when the signal arrives
        write_picture(folder / f"{number:03}.png", (64, 64), seed=number)
    graph = Graph(server)
    save_folder(graph, "input/many", "many", texts=False, batch_size=1)
    (tmp_path / "workflow.json").write_text(json.dumps(graph.prompt))
    # As in a terminal: a test run in the background hands down that Ctrl-C is ignored.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from streamcache.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = run_python(code, "run", str(tmp_path / "workflow.json"), "--server", server.address)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while "StreamCacheCacheSave" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    end = time.monotonic() + 60
    while server.client.get("/queue")["queue_running"] and time.monotonic() < end:
        time.sleep(0.1)
    assert not (cache_path(server, "many") / "dataset.json").exists()


def test_an_unreachable_server_is_reported(workflow: Path, capsys: pytest.CaptureFixture):
    assert main(["run", str(workflow), "--server", "http://127.0.0.1:9"]) == 1
    assert "start ComfyUI, or give its address with --server" in capsys.readouterr().err
