"""The command line without torch: help and `run` work, other commands report what is missing."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import streamcache
from streamcache.cli.main import COMMANDS

from ..support.package import run_python
from .remote.test_comfy_server import DONE, ID, frame, message, upgrade

STANDALONE = ("torch", "numpy", "PIL", "safetensors", "xxhash", "filelock", "psutil")


def run_without(packages: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `streamcache ARGUMENTS` in a Python that lacks these packages."""
    code = f"sys.modules.update(dict.fromkeys({packages}))\n"
    code += "from streamcache.cli.__main__ import main\nsys.exit(main())"
    command = run_python(code, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server that answers as ComfyUI does: it runs one workflow, and node 3 shows "made"."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/ws"):
                self.answer(DONE)
                return
            self.wfile.write(upgrade(self.headers["Sec-WebSocket-Key"].encode()))
            for text in (message("executing", node="3"), message("execution_success")):
                self.wfile.write(frame(1, text.encode()))
            self.rfile.read(1)  # until the client is done
            self.close_connection = True

        def do_POST(self) -> None:
            queued.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"])
            self.answer({"prompt_id": ID})

        def answer(self, facts: object) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(facts).encode())

        def log_message(self, *_: object) -> None:
            pass

    queued: list[dict] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
    assert queued == [{"3": {"class_type": "A", "inputs": {"name": "dogs"}}}]


def test_the_help_names_every_command_with_its_summary():
    done = run_without(STANDALONE, "--help")
    assert done.returncode == 0 and not done.stderr
    shown = " ".join(done.stdout.split())
    assert [name for name, (_, summary) in COMMANDS.items() if f" {name} {summary}" not in shown] == []


def test_the_version_is_printed():
    done = run_without(STANDALONE, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"streamcache {streamcache.__version__}\n", "")


def test_run_has_its_help():
    done = run_without(STANDALONE, "run", "--help")
    assert done.returncode == 0 and "--server URL" in done.stdout and "--json" in done.stdout


def test_a_workflow_runs_on_a_server(server: str, tmp_path: Path):
    workflow = tmp_path / "workflow.json"
    workflow.write_text('{"3": {"class_type": "A", "inputs": {"name": "cats"}}}')
    done = run_without(STANDALONE, "run", str(workflow), "--server", server, "--set", "3.name=dogs")
    assert (done.returncode, done.stdout) == (0, "3 A:\n  made\n"), done.stderr
    assert done.stderr == "3 A\n"


@pytest.mark.parametrize("arguments", [["info", "set"], ["train", "--help"], ["clean", "set"], ["encode", "--help"]])
def test_other_commands_report_what_is_missing_in_one_line(arguments: list[str]):
    done = run_without(("torch",), *arguments)
    assert done.returncode == 1 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert f"this Python ({sys.executable}) lacks the package torch; use ComfyUI's Python" in line


def test_wrong_usage_is_reported_first():
    done = run_without(STANDALONE, "inof", "set")
    assert done.returncode == 2 and 'did you mean "info"?' in done.stderr
