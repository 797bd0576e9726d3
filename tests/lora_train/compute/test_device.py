"""The trainer on a device that is not the CPU: a pretend accelerator with real values, in a process of its own."""

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

from streamcache.lora_train.compute import (
    allocated_bytes,
    can_pin,
    device_streams,
    generator_state,
    is_accelerator,
    restore_generator,
    supports_bf16,
    upload,
)

from ...support.package import run_python
from .on_accelerator import OTHERS, cases_for

KINDS = ("streams", "plain")  # with streams and pinned memory, and without, as Apple's
CPU = torch.device("cpu")
SCENARIO = "from streamcache.tests.lora_train.compute.on_accelerator import main; main(*sys.argv[1:])"


@cache
def outcome(kind: str, folder: Path) -> dict[str, str | None]:
    """What was found on the device with or without streams."""
    found = subprocess.run(run_python(SCENARIO, str(folder), kind), capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accelerator")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in [*cases_for(kind), *OTHERS]])
def test_j1_on_an_accelerator(kind: str, name: str, place: Path) -> None:
    assert outcome(kind, place / kind)[name] is None, outcome(kind, place / kind)[name]


def test_the_cpu_has_nothing_of_an_accelerator() -> None:
    assert not is_accelerator(CPU) and device_streams(CPU) is None and not can_pin(CPU) and not supports_bf16(CPU)
    assert allocated_bytes(CPU) is None and generator_state(CPU) is None
    restore_generator(CPU, None)
    here = torch.ones(2)
    assert upload(here, CPU) is here


def test_every_accelerator_is_asked_by_the_same_functions() -> None:
    """Without a GPU nothing can be asked, but torch's modules show which functions there are."""
    assert device_streams(torch.device("cuda")) is torch.cuda and device_streams(torch.device("xpu")) is torch.xpu
    assert device_streams(torch.device("mps")) is None, "Apple's device has no streams"
    assert hasattr(torch.mps, "current_allocated_memory") and hasattr(torch.xpu, "memory_allocated")
