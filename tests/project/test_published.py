"""The files that are published to the registry: everything ComfyUI needs, and nothing that only developers need."""

import ast
import shutil

import pytest

from streamcache.tests.host.published import ROOT, published_files

pytestmark = pytest.mark.skipif(
    not shutil.which("git") or not (ROOT / ".git").exists(), reason="the list of files comes from git"
)
NEEDED = [
    "__init__.py",
    "pyproject.toml",
    "requirements.txt",
    "LICENSE",
    "README.md",
    "nodes/extension.py",
    "nodes/server/routes.py",
    "web/docs/StreamCacheSelect.md",
    "locales/en/nodeDefs.json",
    "locales/zh/nodeDefs.json",
    "docs/icon.png",
    "example_images/zogglewump/zogglewump_01.png",
    "nodes/host/tiny/tiny.safetensors",
    "py.typed",
]
FORBIDDEN = (
    *("tests/", "bench/", "typings/", "demo/", "pretrain/", "dev.py", "requirements-dev.txt", "CONTRIBUTING.md"),
    *(".ci/", ".git", ".pre-commit", ".comfyignore", ".venv/"),
)


@pytest.fixture(scope="module")
def files() -> list[str]:
    return published_files()


@pytest.mark.parametrize("name", NEEDED)
def test_the_zip_contains(files: list[str], name: str):
    assert name in files


def test_the_zip_contains_no_development_files(files: list[str]):
    assert [name for name in files if name.startswith(FORBIDDEN)] == []
    assert [name for name in files if "__pycache__" in name or name.endswith((".pyc", ".log"))] == []


def test_every_imported_module_is_in_the_zip(files: list[str]):
    modules = {name for name in files if name.endswith(".py")}
    missing = []
    for name in modules:
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = "/".join([".", *name.split("/")[:-1]][: len(name.split("/")) - node.level + 1])
                target = "/".join(filter(None, (folder, (node.module or "").replace(".", "/")))).removeprefix("./")
                candidates = {f"{target}.py", f"{target}/__init__.py"} if target not in ("", ".") else {"__init__.py"}
                if not candidates & modules:
                    missing.append(f"{name}: {target}")
    assert missing == []


def test_the_zip_is_small(files: list[str]):
    sizes = {name: (ROOT / name).stat().st_size for name in files}
    assert sum(sizes.values()) < 12 << 20, sorted(sizes.items(), key=lambda item: -item[1])[:5]


def test_shipped_nodes_start_no_programs_and_change_no_environment(files: list[str]):
    """The registry's reviewers check this."""
    offences = []
    for name in files:
        if not name.startswith("nodes/") or not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            opened = {n.split(".")[0] for n in names if n != "urllib.parse"}  # which only parses addresses
            if {"subprocess", "pip", "urllib", "requests"} & opened or called in ("eval", "exec"):
                offences.append(f"{name}:{node.lineno}")
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "putenv", "system", "popen"):
                offences.append(f"{name}:{node.lineno}")
    assert offences == []
