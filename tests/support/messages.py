"""Messages for people in the code, as patterns: "%1%: cannot be read: %2%". They are collected from the source, and
from the recipes, whose reasons are shown too."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import streamcache

ROOT = Path(streamcache.__file__).parent
LAYERS = ("dataset_cache", "lora_train", "nodes")
ERRORS = {
    "CacheBusy",
    "CacheError",
    "CacheUnreadable",
    "DamagedState",
    "LossRefused",
    "NonFiniteLoss",
    "Refused",
    "SettingError",
    "SourceUnreadable",
    "TrainError",
    "Untraceable",
    "Unusable",
}
# Calls that show or keep a text, and which argument it is.
SHOWN = {
    "CaptionEdit": 0,
    "apply_changes": 2,
    "Excluded": 1,
    "Note": 1,
    "Failure": 0,
    "_refusal": 1,
    "watch": 2,
    "show": 0,
}
# Functions that make a message for others to raise, return or show.
MAKERS = {
    "_describe",
    "_describe_end",
    "_describe_left",
    "_doubts",
    "_no_samples",
    "_report_lines",
    "_warnings",
    "card_advice",
    "cross_site",
    "cut_captions",
    "describe_files",
    "explain",
    "foreign_host",
    "missing_parts",
    "name_problem",
    "note",
    "notes",
    "nothing_given",
    "refuse",
    "_not_found",
    "sentence",
}
_WORD = re.compile(r"[A-Za-z]{2,}")


def messages() -> dict[str, str]:
    """Pattern → a place in the code that has it."""
    found: dict[str, str] = {}
    for path in sorted([*ROOT.glob("*.py"), *(file for layer in LAYERS for file in (ROOT / layer).rglob("*.py"))]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for line, text in _texts(tree):
            for pattern in _patterns(text, constants):
                # Log lines have %s.
                if _WORD.search(re.sub(r"%\d+%", "", pattern)) and "%s" not in pattern:
                    found.setdefault(pattern, f"{path.relative_to(ROOT)}:{line}")
    for path in sorted((ROOT / "lora_train" / "recipes").rglob("*.toml")):
        for text in re.findall(r'^(?:about|why) = "(.*)"$', path.read_text(encoding="utf-8"), re.M):
            found.setdefault(text, str(path.relative_to(ROOT)))
    return found


def _texts(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            at = 0 if name in ERRORS else SHOWN.get(name)
            if at is not None and len(node.args) > at:
                yield node.lineno, node.args[at]
        elif isinstance(node, ast.FunctionDef) and node.name in MAKERS:
            yield from ((text.lineno, text) for text in _sentences(node))


def _sentences(node: ast.AST) -> Iterator[ast.expr]:
    """The outermost texts with a space in a function, without its docstring."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.JoinedStr) or (isinstance(child, ast.Constant) and isinstance(child.value, str)):
            if any(" " in pattern.strip() for pattern in _patterns(child, {})):
                yield child
        else:
            yield from _sentences(child)


def _patterns(node: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield node.value if isinstance(node.value, str) else ""
    elif isinstance(node, ast.JoinedStr):
        parts, count = [], 0
        for value in node.values:
            count += isinstance(value, ast.FormattedValue)
            parts.append(str(value.value) if isinstance(value, ast.Constant) else f"%{count}%")
        yield "".join(parts)
    elif isinstance(node, ast.IfExp):
        yield from _patterns(node.body, constants)
        yield from _patterns(node.orelse, constants)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for first in _patterns(node.left, constants):
            yield from (first + second for second in _patterns(node.right, constants))
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from _patterns(constants[node.id], {})
