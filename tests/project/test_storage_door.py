"""One door to storage: only `storage.py`, `files.py` and `locks.py` of the format touch the files of a dataset."""

import ast
from collections.abc import Iterator
from pathlib import Path

import streamcache
from streamcache import dataset_cache
from streamcache.dataset_cache.format.manifest import MANIFEST, SHARDS
from streamcache.dataset_cache.format.segment import BUILD
from streamcache.dataset_cache.read.leases import LEASES
from streamcache.dataset_cache.write.publishing import PUBLISH_HOLDER

PACK = Path(streamcache.__file__).parent
ROOT = PACK / "dataset_cache"
ROOMS = ("format", "read", "write", "upkeep", "encode")
DOOR = ("storage.py", "files.py", "locks.py")
OTHER_FILES = ("identity.py",)  # reads files that are not part of a dataset: models to identify
OTHER_LAYERS = ("nodes", "cli", "lora_train", "reference")
IN_A_CACHE = {MANIFEST, SHARDS, BUILD, LEASES, PUBLISH_HOLDER}
OF_PATHS = {
    "exists", "glob", "is_dir", "is_file", "iterdir", "lstat", "mkdir", "read_bytes", "read_text", "rename", "rglob",
    "rmdir", "stat", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
MODULES = {"filelock", "mmap", "shutil"}
# What has nothing to do with a dataset.
OF_OS = {"PathLike", "cpu_count", "environ", "getpid", "kill", "name", "readlink", "register_at_fork"}
MAKES_STORAGE = {"storage_at", "existing_storage"}


def breaches(file: Path) -> list[str]:
    """Calls that reach files without asking a storage."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = [breach for node, known in scoped(tree, frozenset()) for breach in breaches_of(node, known)]
    return [f"{file.relative_to(ROOT).as_posix()}:{line}: {what}" for line, what in found]


def breaches_of(node: ast.AST, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        yield from ((node.lineno, f"import {name}") for name in names if name in MODULES)
    elif isinstance(node, ast.Name) and node.id == "open" and isinstance(node.ctx, ast.Load):
        yield node.lineno, "open"
    elif isinstance(node, ast.Attribute):
        on_os = isinstance(node.value, ast.Name) and node.value.id == "os"
        on_path = node.attr in OF_PATHS and not is_storage(node.value, known)
        if (on_os and node.attr not in OF_OS) or on_path or node.attr == "fd":
            yield node.lineno, ast.unparse(node)


def scoped(node: ast.AST, known: frozenset[str]) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """All nodes below, each with the names that stand for a storage in its function."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        known |= set(storages_of(node))
    yield node, known
    for child in ast.iter_child_nodes(node):
        yield from scoped(child, known)


def storages_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Parameters annotated as a storage, and variables that a call makes one."""
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.annotation is not None and ast.unparse(argument.annotation) == "Storage":
            yield argument.arg
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from assigned_storages(target, node.value)


def assigned_storages(target: ast.expr, value: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from assigned_storages(one, its)
    elif isinstance(target, ast.Name) and makes_storage(value):
        yield target.id


def makes_storage(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in MAKES_STORAGE


def is_storage(value: ast.expr, known: frozenset[str]) -> bool:
    """Whether a call goes to a storage: a known name, an attribute `storage`, or a call that returns one."""
    if isinstance(value, ast.Attribute):
        return value.attr in ("storage", "_storage")
    return makes_storage(value) or (isinstance(value, ast.Name) and value.id in known)


def test_the_files_of_a_dataset_are_reached_through_the_storage():
    files = [file for room in ROOMS for file in sorted((ROOT / room).glob("*.py"))]
    files = [file for file in files if file.name not in (*DOOR, *OTHER_FILES)]
    assert [breach for file in files for breach in breaches(file)] == []


def test_other_layers_know_no_file_of_a_cache():
    """They ask `is_published`, `has_build` and the like; without a name they cannot look into a cache's folder."""
    values = {name: getattr(dataset_cache, name) for name in dataset_cache.__all__}
    assert [name for name, value in values.items() if isinstance(value, str) and value in IN_A_CACHE] == []
    found = [
        f"{file.relative_to(PACK).as_posix()}:{name}"
        for layer in OTHER_LAYERS
        for file in sorted((PACK / layer).rglob("*.py"))
        for name in names_in_a_cache(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_key_of_a_mapping_is_not_taken_for_a_file():
    code = 'made["shards"]\nmade.get("shards")\nfolder / "shards"\nopen("shards/s-0")\nmade[folder / "shards"]'
    assert names_in_a_cache(code) == ["3: shards", "4: shards/s-0", "5: shards"]


def names_in_a_cache(code: str) -> list[str]:
    """Texts that name a file of a cache. A JSON object may have a key of the same name: `provenance["shards"]`."""
    nodes = list(ast.walk(ast.parse(code)))
    keys = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
    keys += [node.args[0] for node in nodes if isinstance(node, ast.Call) and is_get(node.func) and node.args]
    return [
        f"{node.lineno}: {node.value}"
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in keys
        if node.value.split("/")[0] in IN_A_CACHE
    ]


def is_get(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and called.attr == "get"


def test_a_path_is_not_taken_for_a_storage(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "file.py"
    file.write_text("def f(source: Path, target: Storage):\n    source.exists()\n    target.exists()\n")
    assert breaches(file) == ["file.py:2: source.exists"]
