"""A real ComfyUI server on a loopback port, with the pack as published, and ways to run workflows on it."""

import json
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamcache import dev
from streamcache.cli.remote.comfy_server import ComfyServer, Event, Outcome

from .published import ROOT, published_files

HERE = Path(__file__).resolve().parent
START_SECONDS = 900  # only stops waiting for a server that never starts


@dataclass
class Server:
    """A running server. `log` is its output."""

    base: Path
    address: str
    process: subprocess.Popen
    log: Path
    client: ComfyServer = field(init=False)

    def __post_init__(self) -> None:
        self.client = ComfyServer(self.address)

    def run(self, prompt: dict[str, Any], events: list[Event] | None = None) -> Outcome:
        """Run a workflow to its end, successful or not."""
        return self.client.run(prompt, events.append if events is not None else lambda event: None)

    def succeed(self, prompt: dict[str, Any], events: list[Event] | None = None) -> dict[str, Any]:
        """Run a workflow that must succeed; returns what its nodes show."""
        outcome = self.run(prompt, events)
        assert outcome.status == "done", f"node {outcome.node}: {outcome.error}\n{self.printed()[-3000:]}"
        return outcome.outputs

    def fail(self, prompt: dict[str, Any]) -> Outcome:
        """Run a workflow that must end with an error on a node. The server must keep running."""
        outcome = self.run(prompt)
        assert outcome.status in ("failed", "refused"), outcome
        assert outcome.node and self.client.get("/system_stats")
        return outcome

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def install_pack(base: Path) -> None:
    """Copy the files of the published zip, and the probes of these tests next to it."""
    pack = base / "custom_nodes" / "streamcache"
    for name in published_files():
        target = pack / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    shutil.copytree(HERE / "probes", base / "custom_nodes" / "probes", dirs_exist_ok=True)


def start_server(host: dev.Host, base: Path, *options: str, port: int = 0) -> Server:
    """Start ComfyUI on this port, or on a free one. Between choosing and using it, another process may take it: then
    choose again."""
    for attempt in range(3):
        try:
            return _start(host, base, *options, port=port or free_port())
        except PortTaken:
            if attempt == 2:
                raise
    raise AssertionError


class PortTaken(AssertionError):
    """Another process listens on the port that was free a moment ago."""


def _start(host: dev.Host, base: Path, *options: str, port: int) -> Server:
    log = base / (f"server-{port}.log" if options else "server.log")
    command = [host.python, host.folder / "main.py", "--cpu", "--base-directory", base, "--port", str(port)]
    command += ["--disable-api-nodes", "--database-url", "sqlite:///:memory:", "--disable-auto-launch", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    environment.pop("STREAMCACHE_STATE_DIR", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command], cwd=base, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    server = Server(base, f"http://127.0.0.1:{port}", process, log)
    try:
        _wait(server)
    except BaseException:
        server.stop()
        raise
    return server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _wait(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if server.process.poll() is not None:
            printed = server.printed()[-4000:]
            raise PortTaken(printed) if "address already in use" in printed else AssertionError(printed)
        try:
            socket.create_connection(server.address.removeprefix("http://").split(":"), 1).close()
            if str(server.base) not in server.client.get("/system_stats")["system"]["argv"]:
                raise PortTaken("another ComfyUI answers on the port")
            return
        except (OSError, ValueError):
            time.sleep(0.2)
    raise AssertionError(f"the server did not start within {START_SECONDS} s:\n{server.printed()[-4000:]}")
