"""Commands that run inside ComfyUI: its options as environment variables, and how its process ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamcache.cli import host
from streamcache.cli.host import environment
from streamcache.cli.main import main

from ..support.package import run_python


def found(*options: str) -> dict[str, str]:
    made = environment(["--cpu", *options, "--base-directory", "D"])
    assert made.pop("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL") == "1"
    return made


def test_only_the_chosen_devices_are_visible():
    expected = {"CUDA_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1,3", "ASCEND_RT_VISIBLE_DEVICES": "1,3"}
    assert found("--cuda-device", "1,3") == expected


def test_a_default_device_comes_first_and_the_others_stay():
    seen = found("--default-device", "2")
    assert seen["CUDA_VISIBLE_DEVICES"].startswith("2,0,1,3,") and seen["CUDA_VISIBLE_DEVICES"].endswith(",31")
    assert seen.keys() == {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}


@pytest.mark.parametrize("options", ["", "--cuda-device all", "--cuda-device=all --default-device=1"])
def test_without_a_choice_all_devices_stay_visible(options: str):
    assert found(*options.split()) == {}


def test_other_driver_options_are_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    options = ["--oneapi-device-selector", "level_zero:0", "--deterministic"]
    assert found(*options) == {"ONEAPI_DEVICE_SELECTOR": "level_zero:0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert found("--deterministic") == {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}


@pytest.fixture
def encode_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The arguments of a command that runs this script as ComfyUI's process."""
    (tmp_path / "ComfyUI" / "comfy").mkdir(parents=True)
    (tmp_path / "ComfyUI" / "main.py").touch()
    monkeypatch.setattr(host, "HEADLESS", tmp_path / "headless.py")

    def arguments(script: str) -> list[str]:
        (tmp_path / "headless.py").write_text(f"import os, signal, sys, time\n{script}", encoding="utf-8")
        comfyui = ["--comfyui", str(tmp_path / "ComfyUI"), "--comfyui-python", sys.executable, "--vae", "v"]
        return ["encode", str(tmp_path), "--to", str(tmp_path / "set"), *comfyui]

    return arguments


posix = pytest.mark.skipif(os.name == "nt", reason="os.kill ends the process with another code on Windows")


@posix
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_command_is_interrupted_when_comfyui_is(number: str, encode_with, capfd: pytest.CaptureFixture):
    script = f"signal.signal(signal.{number}, signal.SIG_DFL); os.kill(os.getpid(), signal.{number}); time.sleep(600)"
    assert main(encode_with(script)) == 130
    assert capfd.readouterr().err == "Interrupted.\n"


@posix
def test_a_command_that_gets_sigterm_while_comfyui_starts_exits_with_130(encode_with, tmp_path: Path):
    arguments = encode_with("print('started', flush=True); time.sleep(600)")
    code = "import streamcache.cli.host as host\nhost.HEADLESS = sys.argv.pop(1)\n"
    code += "from streamcache.cli.main import main\nsys.exit(main())"
    command = run_python(code, str(tmp_path / "headless.py"), *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130


@posix
@pytest.mark.parametrize(
    ("number", "words"), [("SIGKILL", "SIGKILL; if memory ran out, lower the batch size"), ("SIGSEGV", "SIGSEGV")]
)
def test_a_crash_of_comfyui_is_a_failure_with_its_reason(
    number: str, words: str, encode_with, capfd: pytest.CaptureFixture
):
    script = f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.{number})"
    assert main(encode_with(script)) == 1
    error = capfd.readouterr().err
    assert error.startswith(f"streamcache: ComfyUI's process was ended by {words}") and error.count("\n") == 1


@pytest.mark.parametrize(("code", "expected"), [(0xC000013A, 130), (0xC0000005, 1), (3, 3), (0, 0)])
def test_codes_of_windows_are_translated_and_others_returned(
    code: int, expected: int, encode_with, monkeypatch: pytest.MonkeyPatch
):
    real = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", lambda process: real(process) or code)
    assert main(encode_with("")) == expected


LEAVING = """
import ctypes, runpy, sys, weakref
class Kept: pass
kept = Kept()
weakref.finalize(kept, print, "released")
library = ctypes.CDLL(None)
library.__cxa_atexit(library.abort, None, None)  # as a thread of torch that is still there at the end of the process
runpy.run_path(sys.argv[1])["leave"](3)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs a handler of the C library")
def test_a_library_that_aborts_at_the_end_of_the_process_does_not_change_its_exit_code():
    done = subprocess.run(
        [sys.executable, "-c", LEAVING, str(host.HEADLESS)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (3, "released\n"), done.stderr
