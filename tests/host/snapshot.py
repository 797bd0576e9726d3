"""The server's description of the pack's nodes: what saved workflows depend on, and the English texts."""

import json
import os
from pathlib import Path
from typing import Any

from .server import Server, read_json

UPDATE = "UPDATE_SNAPSHOTS"
KEPT = ("default", "min", "max", "step", "multiline", "forceInput", "advanced", "remote", "lazy")
# Their choices come from ComfyUI: its files, the user's recipes, and the model families that it knows.
HOSTS_CHOICES = {
    "clip_name", "clip_name2", "clip_name3", "clip_name4", "vae_name", "type", "folder", "start_from",
    "training_adapter", "file",
}  # fmt: skip


def pack_nodes(server: Server) -> dict[str, Any]:
    every = server.client.get("/object_info")
    return {name: info for name, info in sorted(every.items()) if info["python_module"] == "custom_nodes.streamcache"}


def contract(info: dict[str, Any]) -> dict[str, Any]:
    """Ids, types, defaults and order of a node's inputs and outputs."""
    inputs = [
        {"id": name, "optional": group == "optional", **_input(name, *spec)}
        for group in ("required", "optional")
        for name, spec in info["input"].get(group, {}).items()
    ]
    outputs = [
        {"type": kind, "name": name, "list": many}
        for kind, name, many in zip(info["output"], info["output_name"], info["output_is_list"], strict=True)
    ]
    return {"inputs": inputs, "outputs": outputs, "output_node": info["output_node"], "lists": info["is_input_list"]}


def english(info: dict[str, Any]) -> dict[str, Any]:
    """The node's texts, in the form of a locale file."""
    inputs = {}
    for group in ("required", "optional"):
        for name, (_, options) in info["input"].get(group, {}).items():
            inputs[name] = {"name": options.get("display_name", name), "tooltip": options.get("tooltip", "")}
    names = zip(info["output_name"], info["output_tooltips"], strict=True)
    outputs = {str(n): {"name": name, "tooltip": tooltip or ""} for n, (name, tooltip) in enumerate(names)}
    texts = {"display_name": info["display_name"], "description": info["description"], "inputs": inputs}
    return {**texts, **({"outputs": outputs} if outputs else {})}


def compare(path: Path, found: Any) -> None:
    """The file must equal what was found. With UPDATE_SNAPSHOTS set, the file is written instead."""
    if os.environ.get(UPDATE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_json(path) == found, f"{path.name} differs; if that is intended, run these tests with {UPDATE}=1"


def _input(name: str, kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    facts = {key: options[key] for key in KEPT if options.get(key) not in (None, False)}
    if "template" in options:
        facts["template"] = {key: options["template"][key] for key in ("prefix", "min", "max")}
    choices = kind if isinstance(kind, list) else options.get("options")
    if choices is not None:
        facts["options"] = "the host's" if name in HOSTS_CHOICES or not _is_fixed(name, kind) else choices
    return {"type": "COMBO" if isinstance(kind, list) else kind, **facts}


def _is_fixed(name: str, kind: Any) -> bool:
    return (name, kind) != ("name", "COMBO")  # the existing caches
