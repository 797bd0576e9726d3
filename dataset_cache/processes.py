"""Processes of this host: how a lease or a lock names one, and whether it is still running."""

import contextlib
import os
import socket
import subprocess
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

_PROC = Path("/proc")


@lru_cache(1)
def this_host() -> str:
    """This host, with its PID namespace: containers with one host name may each have their own process numbers."""
    try:
        space = "".join(c for c in os.readlink("/proc/self/ns/pid") if c.isdigit())
    except OSError:
        space = "0"
    name = "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname())
    return f"{name}-{space}"


def is_running(pid: int, start: str) -> bool | None:
    """Whether the process that `start_of` described still runs on this host; None if that cannot be found out."""
    if os.name == "nt":
        return None  # os.kill would end the process on Windows
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # a process of another user
        pass
    found = start_of(pid)
    if found is None:
        return False
    return found == start if found and start else None


def own_start() -> str:
    """When this process started, as `start_of` describes it."""
    return _start_once(os.getpid())


@lru_cache(1)
def _start_once(pid: int) -> str:  # by number: a forked process has its own
    return start_of(pid) or ""


def start_of(pid: int) -> str | None:
    """When a process started, as hex digits: systems use process numbers again. "" if unknown, None if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text()
        # The name of the program is in brackets and may contain anything.
        status = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if status[0] in "ZX" else f"{boot[:8]}{int(status[19]):x}"
    if os.name == "nt" or _PROC.joinpath("self").exists():
        return ""
    return _start_from_ps(pid)


def _start_from_ps(pid: int) -> str:
    """As macOS reports it."""
    command, words = ["ps", "-o", "lstart=", "-p", str(pid)], {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        found = subprocess.run(command, env=words, capture_output=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return blake2b(found, digest_size=8).hexdigest() if found else ""
