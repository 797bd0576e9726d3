"""A training in a process of its own: if it crashes, or memory runs out, the process that started it goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..host import describe_crash
from ..signals import INTERRUPTING

PACK = Path(__file__).resolve().parents[2]
# As the package `streamcache`, wherever its folder is and whatever it is called.
START = """\
import importlib.util, sys
sys.path.pop(0)
pack = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("streamcache", pack + "/__init__.py", submodule_search_locations=[pack])
package = sys.modules["streamcache"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from streamcache.cli.__main__ import main
sys.exit(main())
"""
_SECONDS = 0.1  # between two looks at the process
_STOPPED = 130


@dataclass(frozen=True)
class Outcome:
    """How a training ended: with a result, stopped on request, or with a problem."""

    result: Mapping[str, Any] = field(default_factory=dict)
    stopped: bool = False
    crashed: bool = False  # ended by a signal or the system, not by an error of its own
    problem: str = ""


def train_in_child(
    arguments: Sequence[str],
    settings: Mapping[str, Any],
    turn: Path,
    folder: str | Path = ".",
    environment: Mapping[str, str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Run `streamcache train` with these arguments and settings until it ends.

    If `stop` returns True, or this process is interrupted, it stops after its step and saves. So it does if this
    process is killed: the system closes the pipe (see `take_turn`). The interrupt is raised again once it has ended.
    """
    given = ["train", *arguments, "--settings", json.dumps(settings), "--turn", str(turn), "--json"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(PACK), *given],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
        )
        interrupt = _wait(process, stop)
        output.seek(0)
        outcome = _outcome(process.returncode, output.read().decode(errors="replace"))
    if interrupt is not None:
        raise interrupt
    return outcome


def _wait(process: subprocess.Popen, stop: Callable[[], bool]) -> KeyboardInterrupt | None:
    """Wait until the process ends; returns the interrupt that came meanwhile."""
    interrupt = None
    while process.poll() is None:
        try:
            if process.stdin is not None and (interrupt or stop()):
                process.stdin.close()
            time.sleep(_SECONDS)
        except KeyboardInterrupt as error:
            interrupt = error
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    return interrupt


def _outcome(code: int, printed: str) -> Outcome:
    facts = _last_object(printed)
    if code in (0, _STOPPED) or code in INTERRUPTING:
        return Outcome(result=facts, stopped=code != 0)
    crash = describe_crash(code)
    if crash:
        return Outcome(crashed=True, problem=f"the training's process {crash}")
    return Outcome(problem=str(facts.get("error") or f"the training ended with the exit code {code}"))


def _last_object(printed: str) -> dict[str, Any]:
    """The JSON object at the end of what a command printed; ComfyUI may print other lines before it."""
    lines = printed.splitlines()
    for first in range(len(lines) - 1, -1, -1):
        if lines[first].startswith("{"):
            with suppress(ValueError):
                found = json.loads("\n".join(lines[first:]))
                return found if isinstance(found, dict) else {}
    return {}
