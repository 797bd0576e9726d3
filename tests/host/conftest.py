"""Finds the real ComfyUI and runs scenarios in its Python. Without one, the tests are skipped and say how to get it.

If COMFYUI_PATH names several, every test runs on each of them.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamcache import dev
from streamcache.tests.host.server import Server, install_pack, start_server
from streamcache.tests.host.tiny_models import write_models

HERE = Path(__file__).resolve().parent
# A scenario takes seconds, or minutes on a busy machine; this only stops one that hangs.
TIME_LIMIT = 1100


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "host" in metafunc.fixturenames:
        with contextlib.suppress(ValueError):  # the fixture says what is wrong
            hosts = dev.find_hosts()
            if len(hosts) > 1:
                names = [dev.host_version(found.folder) for found in hosts]
                metafunc.parametrize("host", hosts, indirect=True, ids=names, scope="session")


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest) -> dev.Host:
    try:
        found = getattr(request, "param", None) or dev.find_host()
    except ValueError as problem:
        pytest.skip(str(problem))
    if found is None:
        pytest.skip(f"ComfyUI {dev.HOW_TO_GET_A_HOST}")
    check = subprocess.run([found.python, "-c", "import torch, xxhash"], capture_output=True, text=True, check=False)
    if check.returncode:
        reason = check.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"{found.python}: {reason}; install it there: {found.python} -m pip install -r requirements.txt")
    return found


@pytest.fixture(scope="session")
def base(host: dev.Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base directory for ComfyUI with the tiny models, so that the installation is neither read nor written."""
    folder = tmp_path_factory.mktemp("base")
    write_models(folder / "models")
    return folder


@pytest.fixture(scope="session")
def run_in_host(host: dev.Host, base: Path) -> Callable[[str], dict]:
    """Runs a scenario module of this folder in ComfyUI's Python and returns the result of its `run`."""

    def run(scenario: str) -> dict:
        result = base / f"{scenario}.json"
        command = [host.python, HERE / "inside.py", scenario, host.folder, base, result]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        done = subprocess.run(
            command, cwd=base, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT, check=False
        )
        if done.returncode:
            pytest.fail(f"{scenario} stopped with exit code {done.returncode}:\n{done.stderr[-6000:]}", pytrace=False)
        return json.loads(result.read_text(encoding="utf-8"))

    return run


@pytest.fixture(scope="session")
def server(host: dev.Host, base: Path) -> Iterator[Server]:
    """One server for all tests, with the published pack."""
    install_pack(base)
    running = start_server(host, base)
    yield running
    running.stop()
