"""Claims: functions of a scenario that assert something and run in ComfyUI's Python.

The tests outside read their names from the source of the scenario, because they cannot import ComfyUI.
"""

import ast
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def claim(function: Callable[..., None]) -> Callable[..., None]:
    """Marks a function that asserts something."""
    return function


def names_in(scenario: str) -> list[str]:
    """The claims of a scenario, in order."""
    tree = ast.parse((HERE / f"{scenario}.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if any(getattr(d, "id", "") == "claim" for d in f.decorator_list)]


def hold(scenario: str, functions: dict[str, Any], *given: Any) -> dict[str, str | None]:
    """Run every claim on the given arguments: None if it holds, otherwise the traceback."""
    outcome: dict[str, str | None] = {}
    for name in names_in(scenario):
        try:
            functions[name](*given)
            outcome[name] = None
        except Exception:
            outcome[name] = traceback.format_exc(limit=-4)
    return outcome
