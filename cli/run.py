"""`streamcache run`: runs a workflow on a ComfyUI server and shows its progress and errors."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..dataset_cache import CacheError
from .comfy_server import ComfyServer, Event, Outcome
from .output import Progress, add_output_option, show

FAILED, INTERRUPTED = 1, 130


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    text = "run a workflow, saved in ComfyUI with Export (API), on a ComfyUI server"
    parser = subparsers.add_parser("run", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("workflow", metavar="FILE", help="the workflow's JSON file")
    parser.add_argument(
        "--server", default="http://127.0.0.1:8188", metavar="URL", help="the server's address (default: %(default)s)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NODE.INPUT=VALUE",
        help="change an input of a node, named by its number or title; can be repeated",
    )
    add_output_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    prompt = read_workflow(args.workflow)
    for change in args.set:
        apply_change(prompt, change)
    with Progress(args, "Running", "steps") as progress:
        outcome = ComfyServer(args.server).run(prompt, _EventPrinter(args, prompt, progress))
    show(args, vars(outcome), _lines(outcome, prompt))
    return {"done": 0, "interrupted": INTERRUPTED}.get(outcome.status, FAILED)


def read_workflow(path: str) -> dict[str, Any]:
    """The nodes of a workflow, in the server's format."""
    try:
        prompt = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CacheError(f"{path}: not JSON: {error}") from None
    if isinstance(prompt, dict) and "nodes" in prompt and "links" in prompt:
        raise CacheError(f"{path}: saved for the canvas; save it again in ComfyUI with Export (API)")
    fits = (
        isinstance(prompt, dict) and prompt and all(isinstance(n, dict) and "class_type" in n for n in prompt.values())
    )
    if not fits:
        raise CacheError(f"{path}: not a workflow; save one in ComfyUI with Export (API)")
    return prompt


def apply_change(prompt: dict[str, Any], change: str) -> None:
    """Set an input as NODE.INPUT=VALUE says. The value is parsed as JSON if possible, else taken as text."""
    place, found, text = change.partition("=")
    node, dot, name = place.rpartition(".") if "." in place else ("", "", "")
    if not (found and dot):
        raise CacheError(f"--set {change}: expected NODE.INPUT=VALUE, such as 3.name=my_set")
    titles = {n.get("_meta", {}).get("title"): number for number, n in prompt.items()}
    number = node if node in prompt else titles.get(node)
    if number is None or name not in prompt[number].setdefault("inputs", {}):
        known = ", ".join(f"{n}.{i}" for n, v in prompt.items() for i in v.get("inputs", {}))
        raise CacheError(f"--set {change}: input {place} not found in the workflow; available: {known or 'none'}")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    prompt[number]["inputs"][name] = value


class _EventPrinter:
    """Shows events: a progress bar on a terminal, otherwise one line per node."""

    def __init__(self, args: argparse.Namespace, prompt: dict[str, Any], progress: Progress) -> None:
        self._prompt, self._progress = prompt, progress
        self._plain = not sys.stderr.isatty() and not args.json
        self._label = ""

    def __call__(self, event: Event) -> None:
        if event.kind == "node":
            self._label = node_label(self._prompt, event.node)
            self._progress(0, 1, self._label)
            if self._plain:
                print(self._label, file=sys.stderr)
        elif event.kind == "text":
            self._progress(0, 1, f"{self._label}: {event.text.splitlines()[0] if event.text else ''}")
        elif event.kind == "progress":
            self._progress(int(event.done), int(event.total), self._label)


def node_label(prompt: dict[str, Any], number: str) -> str:
    node = prompt.get(number, {})
    return f"{number} {node.get('_meta', {}).get('title') or node.get('class_type', '')}".strip()


def _lines(outcome: Outcome, prompt: dict[str, Any]) -> list[str]:
    lines = []
    for number, found in outcome.outputs.items():
        texts = [text for text in found.get("text", []) if isinstance(text, str)]
        files = [f"{i.get('type')}/{i.get('subfolder')}/{i.get('filename')}".replace("//", "/") for i in _files(found)]
        lines += [f"{node_label(prompt, number)}:", *(f"  {line}" for text in texts for line in text.splitlines())]
        lines += [f"  {file}" for file in files]
    if outcome.status != "done":
        where = f"{node_label(prompt, outcome.node)}: " if outcome.node else ""
        lines.append(f"{outcome.status.capitalize()}: {where}{outcome.error}".rstrip(": "))
    return lines


def _files(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for values in found.values() if isinstance(values, list) for item in values if _is_file(item)]


def _is_file(item: Any) -> bool:
    return isinstance(item, dict) and "filename" in item
