"""`streamcache run`: runs a workflow on a ComfyUI server and shows its progress and errors."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ...errors import CacheError
from ..output import Progress, show
from ..parser import Parser, UsageError
from .comfy_server import ComfyServer, Event, Outcome

FAILED, INTERRUPTED = 1, 130


def add_run_flags(parser: Parser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("workflow", metavar="FILE", help="The workflow's JSON file")
    parser.add_argument(
        "--server", default="http://127.0.0.1:8188", metavar="URL", help="Address of the server [%(default)s]"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NODE.INPUT=VALUE",
        help="Change an input of a node, named by its number or title; can be repeated",
    )


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
    except OSError as error:
        raise CacheError(f"{path}: cannot be read ({error.strerror}); give a workflow's JSON file") from None
    except (ValueError, RecursionError) as error:
        raise CacheError(f"{path}: not JSON: {error}") from None
    if isinstance(prompt, dict) and "nodes" in prompt and "links" in prompt:
        raise CacheError(f"{path}: saved for the canvas; save it again in ComfyUI with Export (API)")
    if not isinstance(prompt, dict) or not prompt:
        raise CacheError(f"{path}: not a workflow; save one in ComfyUI with Export (API)")
    for number, node in prompt.items():
        problem = _problem(node)
        if problem:
            raise CacheError(f"{path}: not a workflow: node {number}: {problem}; save it with Export (API)")
    return prompt


def _problem(node: Any) -> str:
    """Why ComfyUI could not take this node; an empty text if it can."""
    if not isinstance(node, dict) or "class_type" not in node:
        return "class_type is missing"
    if not isinstance(node["class_type"], str):
        return "class_type is not a text"
    for name in ("inputs", "_meta"):
        if not isinstance(node.get(name, {}), dict):
            return f"{name} is not an object"
    return "" if isinstance(_title(node), str) else "the title is not a text"


def _title(node: dict[str, Any]) -> Any:
    return node.get("_meta", {}).get("title", "")


def apply_change(prompt: dict[str, Any], change: str) -> None:
    """Set an input as NODE.INPUT=VALUE says. The value is parsed as JSON if possible, else taken as text."""
    place, found, text = change.partition("=")
    node, dot, name = place.rpartition(".") if "." in place else ("", "", "")
    if not (found and dot):
        raise UsageError(f"--set {change}: expected NODE.INPUT=VALUE, such as 3.name=my_set")
    titles = {_title(n): number for number, n in prompt.items() if _title(n)}
    number = node if node in prompt else titles.get(node)
    if number is None or name not in prompt[number].setdefault("inputs", {}):
        known = ", ".join(f"{n}.{i}" for n, v in prompt.items() for i in v.get("inputs", {}))
        raise UsageError(f"--set {change}: input {place} not found in the workflow; available: {known or 'none'}")
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
    return f"{number} {_title(node) or node.get('class_type', '')}".strip()


def describe_outputs(outputs: dict[str, Any], prompt: dict[str, Any]) -> list[str]:
    """The texts and files that nodes have shown. Other packs' nodes may show anything; the rest is skipped."""
    lines = []
    for number, found in outputs.items():
        shown = found if isinstance(found, dict) else {}
        texts = [text for text in _list(shown.get("text")) if isinstance(text, str)]
        files = [f"{i.get('type')}/{i.get('subfolder')}/{i.get('filename')}".replace("//", "/") for i in _files(shown)]
        lines += [f"{node_label(prompt, number)}:", *(f"  {line}" for text in texts for line in text.splitlines())]
        lines += [f"  {file}" for file in files]
    return lines


def _lines(outcome: Outcome, prompt: dict[str, Any]) -> list[str]:
    lines = describe_outputs(outcome.outputs, prompt)
    if outcome.status != "done":
        where = f"{node_label(prompt, outcome.node)}: " if outcome.node else ""
        lines.append(f"{outcome.status.capitalize()}: {where}{outcome.error}".rstrip(": "))
    return lines


def _files(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for values in found.values() for item in _list(values) if _is_file(item)]


def _list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else []


def _is_file(item: Any) -> bool:
    return isinstance(item, dict) and "filename" in item
