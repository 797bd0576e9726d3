"""Who holds a lock: a second process is told, and a killed one holds nothing."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamcache.dataset_cache.format import locks
from streamcache.lora_train.queue.holder import Held, hold

from ...support.package import run_python

KILLED = """
import os, signal
from streamcache.lora_train.queue import hold
with hold(__import__("pathlib").Path(sys.argv[1]), "the first"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_i5_a_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    with hold(tmp_path / "x", "the first"):
        with pytest.raises(Held) as held, hold(tmp_path / "x", "the second"):
            pass
        assert str(held.value).startswith(f" (the first, process {os.getpid()}, since 20")
    with hold(tmp_path / "x", "the third"):
        pass
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(os.name != "posix", reason="drives without file locks are tested on POSIX")
def test_without_file_locks_the_marker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    words = r"the first, process .*; if it has ended, remove .*x\.lock\.held"
    with hold(tmp_path / "x", "the first"), pytest.raises(Held, match=words), hold(tmp_path / "x", "the second"):
        pass
    with hold(tmp_path / "x", "the third"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    assert subprocess.run(run_python(KILLED, str(tmp_path / "x")), timeout=600).returncode < 0
    with hold(tmp_path / "x", "the second"):
        assert '"the second"' in (tmp_path / "x").read_text()
