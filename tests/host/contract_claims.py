"""Scenario: a ComfyUI that renamed something that the pack uses."""

import asyncio
import contextlib
import importlib
import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import server  # noqa: F401  ComfyUI loads it before any pack

import nodes
from streamcache.nodes.host import contract
from streamcache.nodes.host.contract import NAMES, HostChanged, check_host

from .claims import claim, hold

ROOT = Path(__file__).resolve().parents[2]


def run(base: Path) -> dict:
    return hold("contract_claims", globals(), base)


def refusal() -> str:
    try:
        check_host()
    except HostChanged as error:
        return str(error)
    raise AssertionError("nothing is missing")


@contextlib.contextmanager
def renamed(name: str) -> Iterator[bool]:
    """The last part of `module:a.b` has another name; False if it cannot be deleted, or is inherited as well."""
    module, _, path = name.partition(":")
    *inner, last = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in inner:
        owner = getattr(owner, part)
    own = vars(owner) if hasattr(owner, "__dict__") else {}
    if last not in own or last.startswith("__") or hasattr(owner, "__members__"):
        yield False
        return
    value = own[last]
    delattr(owner, last)
    try:
        yield not hasattr(owner, last)
    finally:
        setattr(owner, last, value)


@claim
def this_comfyui_has_every_name(_: Path) -> None:
    check_host()


@claim
def each_name_that_is_missing_is_named_with_the_version_and_what_to_do(_: Path) -> None:
    import comfyui_version

    tried = 0
    for name in NAMES:
        with renamed(name) as gone:
            words = refusal() if gone else ""
        if gone:
            tried += 1
            assert f"does not fit ComfyUI {comfyui_version.__version__}, which lacks " in words, words
            assert name.replace(":", ".") in words and "Update StreamCache" in words, (name, words)
    assert tried > 60, tried
    check_host()


@claim
def a_missing_module_is_the_sentence_and_a_missing_package_of_comfyui_is_not(_: Path) -> None:
    module = sys.modules["comfy.nested_tensor"]
    sys.modules["comfy.nested_tensor"] = None  # as if it did not exist
    try:
        assert "lacks comfy.nested_tensor.NestedTensor. Update" in refusal()
    finally:
        sys.modules["comfy.nested_tensor"] = module

    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torchsde'", name="torchsde")

    contract.importlib = types.SimpleNamespace(import_module=broken)
    try:
        check_host()
    except ModuleNotFoundError as error:
        assert error.name == "torchsde"
    finally:
        contract.importlib = importlib


@claim
def comfyui_logs_the_sentence_when_it_loads_the_pack_and_goes_on_without_it(_: Path) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    try:
        with renamed("comfy.sample:fix_empty_latent_channels"):
            loaded = asyncio.run(nodes.load_custom_node(str(ROOT)))
    finally:
        logging.getLogger().removeHandler(handler)
    words = "\n".join(lines)
    assert loaded is False and "which lacks comfy.sample.fix_empty_latent_channels. Update StreamCache" in words, words
    assert "Traceback" not in words, words
