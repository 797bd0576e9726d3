"""One door to storage: only `storage.py` and `files.py` of the format touch the files of a dataset."""

import ast
from pathlib import Path

import streamcache

ROOT = Path(streamcache.__file__).parent / "dataset_cache"
ROOMS = ("format", "read", "write", "upkeep")
DOOR = ("storage.py", "files.py")
OTHER_FORMATS = ("convert.py",)  # reads files of ComfyUI's own datasets, which are not ours
OF_PATHS = {
    "exists", "glob", "is_dir", "is_file", "iterdir", "lstat", "mkdir", "read_bytes", "read_text", "rename", "rglob",
    "rmdir", "stat", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
MODULES = {"filelock", "mmap", "shutil"}
OF_OS = {"environ", "getpid", "kill", "name", "readlink", "register_at_fork"}  # what has nothing to do with a dataset


def breaches(file: Path) -> list[str]:
    """Calls that reach files without asking a storage."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [(node.lineno, f"import {name}") for name in names if name in MODULES]
        elif isinstance(node, ast.Name) and node.id == "open" and isinstance(node.ctx, ast.Load):
            found.append((node.lineno, "open"))
        elif isinstance(node, ast.Attribute):
            on_os = isinstance(node.value, ast.Name) and node.value.id == "os"
            if (
                (on_os and node.attr not in OF_OS)
                or (node.attr in OF_PATHS and not is_storage(node.value))
                or node.attr == "fd"
            ):
                found.append((node.lineno, ast.unparse(node)))
    return [f"{file.relative_to(ROOT).as_posix()}:{line}: {what}" for line, what in found]


def is_storage(value: ast.expr) -> bool:
    """Whether a call goes to a storage, by the name of the variable."""
    text = ast.unparse(value)
    return text.endswith(("storage", "source", "target")) or text.startswith("storage_at(")


def test_the_files_of_a_dataset_are_reached_through_the_storage():
    files = [file for room in ROOMS for file in sorted((ROOT / room).glob("*.py"))]
    files = [file for file in files if file.name not in (*DOOR, *OTHER_FORMATS)]
    assert [breach for file in files for breach in breaches(file)] == []
