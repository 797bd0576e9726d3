"""Real ranks on loopback: each start trains several scenarios."""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ...support.package import ROOT, run_python
from . import worker

START = f"sys.path.insert(0, {str(ROOT)!r})\n"
START += "from tests.lora_train.ranks.worker import main; main(*sys.argv[1:])"
SECONDS = 240

Order = tuple[str, str, dict[str, Any]]  # scenario, name of the run, what is different


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    worker.make_parts(folder)
    return folder


@pytest.fixture(scope="session")
def launch(parts: Path) -> Callable[..., list[list[dict[str, Any]]]]:
    """Train these scenarios with so many ranks: for each rank its outcomes."""

    def start(size: int, *orders: Order, codes: bool = True, **environment: str) -> list[list[dict[str, Any]]]:
        port = free_port()
        processes = [start_rank(parts, rank, size, port, orders, environment) for rank in range(size)]
        ended = [process.communicate(timeout=SECONDS) for process in processes]
        if codes:
            assert [process.returncode for process in processes] == [0] * size, ended
        files = [parts / f"outcome-{size}-{rank}.json" for rank in range(size)]
        return [json.loads(file.read_text()) if file.exists() else [] for file in files]

    return start


def start_rank(folder: Path, rank: int, size: int, port: int, orders: Any, environment: Any) -> subprocess.Popen:
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    given = [json.dumps(order) for order in orders]
    return subprocess.Popen(
        run_python(START, str(folder), *given),
        env={**os.environ, **place, **meeting, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
