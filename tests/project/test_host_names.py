"""nodes/host/contract.py lists every name of ComfyUI that the code uses.

python tests/project/test_host_names.py     writes the list again
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from torch import nn

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / "nodes" / "host" / "contract.py"
LIST = re.compile(r"^NAMES: tuple\[str, \.\.\.\] = \(.*?\)$", re.MULTILINE | re.DOTALL)
HOST = ("comfy", "comfy_api", "comfy_execution", "comfy_extras", "execution", "folder_paths", "nodes", "server")
# Runs before the pack is loaded, in place of ComfyUI's main.py.
START = ROOT / "nodes" / "host" / "headless.py"
# What variables of these names are in nodes/host: their methods belong to the contract too.
OBJECTS = {
    "patcher": "comfy.model_patcher:ModelPatcher",
    "model": "comfy.model_base:BaseModel",
    "vae": "comfy.sd:VAE",
    "clip": "comfy.sd:CLIP",
}
OWN = {"lease"}  # a method of the pack's stand-ins for CLIP and VAE
# Exists once a server runs; commands have none.
LATER = ".instance"


def used_names() -> set[str]:
    """`module:name` for all names of ComfyUI in nodes/. Of `a.b` and `a.b.c`, the longer one."""
    files = [file for file in sorted((ROOT / "nodes").rglob("*.py")) if file != START]
    names = {name.partition(LATER)[0] for file in files for name in _names_in(file)}
    return {name for name in names if not any(other.startswith((f"{name}.", f"{name}:")) for other in names)}


def _names_in(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported = dict(_imports(tree))
    yield from imported.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (found := _place(node, imported)):
            yield found
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("changed", "getattr", "setattr"):
            yield from _by_text(node, imported)
        if isinstance(node, ast.Call) and file.is_relative_to(ROOT / "nodes" / "host"):
            yield from _methods(node)


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The variable that an import makes, and what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_host(alias.name):
                    yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_host(node.module or ""):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}:{alias.name}"


def _is_host(module: str) -> bool:
    return module.partition(".")[0] in HOST


def _place(node: ast.expr, imported: dict[str, str]) -> str:
    """`comfy.ops:Linear` for the expression `comfy.ops.Linear`; empty if it does not begin with an import."""
    text = _dotted(node)
    owners = [variable for variable in imported if text.startswith(f"{variable}.")]
    if not owners:
        return ""
    owner = max(owners, key=len)
    place, rest = imported[owner], text.removeprefix(f"{owner}.")
    return f"{place}.{rest}" if ":" in place else f"{place}:{rest}"


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner and isinstance(node, ast.Attribute) else ""


def _by_text(call: ast.Call, imported: dict[str, str]) -> Iterator[str]:
    """`changed(comfy.ops, "name", …)`, and `getattr` without a value for a missing one."""
    optional = getattr(call.func, "id", "") == "getattr" and len(call.args) > 2
    if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) and not optional:
        attribute = ast.Attribute(call.args[0], str(call.args[1].value))
        if found := _place(attribute, imported):
            yield found


def _methods(call: ast.Call) -> Iterator[str]:
    if isinstance(call.func, ast.Attribute):
        variable = _dotted(call.func.value).rpartition(".")[2]
        method = call.func.attr
        if variable in OBJECTS and method not in OWN and not hasattr(nn.Module, method):
            yield f"{OBJECTS[variable]}.{method}"


def render(text: str) -> str:
    rows = "".join(f'    "{name}",\n' for name in sorted(used_names()))
    return LIST.sub(lambda _: f"NAMES: tuple[str, ...] = (\n{rows})", text)


def test_the_contract_lists_every_name_of_comfyui_that_the_code_uses():
    text = CONTRACT.read_text(encoding="utf-8")
    assert render(text) == text, "run: python tests/project/test_host_names.py"


def test_nothing_is_decided_by_the_version_of_comfyui():
    files = [
        file for folder in ("nodes", "cli", "lora_train", "dataset_cache") for file in (ROOT / folder).rglob("*.py")
    ]
    asking = {file for file in files if "comfyui_version" in file.read_text(encoding="utf-8")}
    assert asking == {CONTRACT}, "ask for the capability instead; the contract only shows the version"


def test_names_are_found_in_every_form(tmp_path: Path):
    file = tmp_path / "some.py"
    file.write_text(
        "import comfy.ops\nimport comfy.sample as sampling\nfrom comfy.cli_args import args\nimport numpy.ma\n"
        "comfy.ops.Linear.forward(1)\nsampling.sample()\nargs.listen\ngetattr(comfy.ops, 'old', None)\n"
        "changed(comfy.ops, 'flag', True)\nnumpy.ma.zeros\n"
    )
    found = {name for name in _names_in(file) if ":" in name}
    assert found == {
        "comfy.ops:Linear", "comfy.ops:Linear.forward", "comfy.sample:sample", "comfy.cli_args:args",
        "comfy.cli_args:args.listen", "comfy.ops:flag",
    }  # fmt: skip


if __name__ == "__main__":
    CONTRACT.write_text(render(CONTRACT.read_text(encoding="utf-8")), encoding="utf-8")
