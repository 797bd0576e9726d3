"""Signals that end a command act as Ctrl-C, and reach the ComfyUI process that a command started."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from streamcache.cli.signals import ENDING, ending_as_interrupt, passed_on_to
from streamcache.cli.train import stop_on_interrupt

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends the process on Windows")


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """As in a terminal: `nohup` hands down an ignored SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_an_ending_signal_interrupts_and_handlers_are_put_back(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ending_as_interrupt():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_a_second_ending_signal_is_ignored():
    with ending_as_interrupt():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)


def test_an_ending_signal_interrupts_a_background_job_too():
    """Shells start background jobs of scripts with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), ending_as_interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_signal_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_ending_signal_lets_a_training_finish_its_step():
    with ending_as_interrupt(), stop_on_interrupt() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.is_set()


def test_a_command_runs_in_any_thread():
    done = []

    def run() -> None:
        with ending_as_interrupt():
            done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done


def test_the_child_process_gets_the_signal():
    script = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    script += "print(1, flush=True)\nsignal.pause()"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with child, passed_on_to(child):
        assert child.stdout is not None and child.stdout.readline()
        os.kill(os.getpid(), signal.SIGTERM)
        assert child.wait(60) == 7
