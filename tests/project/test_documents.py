"""Documents name files and functions that exist, and link to pages that exist."""

import ast
import importlib
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOPS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md")]
DOCUMENTS = [document for document in DOCUMENTS if document.exists()]
PATH = re.compile(rf"^(?:(?:{'|'.join(TOPS)}|\.github)/[\w./-]*|dev\.py|[\w-]+\.(?:md|toml|txt))$")
CODE = ("dataset_cache", "lora_train", "reference", "nodes", "cli")
PUBLIC = ("streamcache.dataset_cache", "streamcache.lora_train", "streamcache.reference")
MADE = ("demo/",)  # written by a command, not part of the repository


def prose(document: Path) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.S | re.M)


def code_spans(document: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(document))


def names_in(file: Path) -> set[str]:
    """Functions, classes, `Class.method`s and constants of a Python file; of JavaScript, all declared names."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".js":
        return set(re.findall(r"(?:function\*?|class|const|let) (\w+)", text))
    names = set()
    for node in ast.parse(text).body:
        names |= {getattr(node, "name", "")}
        names |= {t.id for t in getattr(node, "targets", [getattr(node, "target", None)]) if isinstance(t, ast.Name)}
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.AsyncFunctionDef)}
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_in_a_document_exists(document: Path):
    paths = [span.partition("::")[0] for span in code_spans(document)]
    named = [path for path in paths if PATH.match(path) and not path.startswith(MADE)]
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_function_in_a_document_exists(document: Path):
    named = [span.split("::") for span in code_spans(document) if "::" in span]
    missing = [f"{path}::{name}" for path, name in named if name not in names_in(ROOT / path)]
    assert missing == []


@pytest.mark.parametrize("document", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path):
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose(document))
    assert [target for target in targets if not (document.parent / unquote(target)).exists()] == []


@pytest.mark.parametrize("document", [ROOT / "README.md", *ROOT.glob("docs/*.md")], ids=lambda path: path.name)
def test_code_in_documents_imports_public_names(document: Path):
    blocks = re.findall(r"^```python\n(.*?)^```$", document.read_text(encoding="utf-8"), re.S | re.M)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    named = [(node.module or "", alias.name) for node in nodes for alias in node.names]
    for module, name in named:
        if module.partition(".")[0] == "streamcache":
            assert module in PUBLIC and name in importlib.import_module(module).__all__, f"{module}.{name}"


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert sorted(page for page in pages if f"({page})" not in index) == []


def test_the_map_lists_every_file_of_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### `([\w/]+)/`\n(.*?)(?=^##)", text, re.S | re.M)
    mapped = {room: set(re.findall(r"^\| `(\w+\.py)` \|", body, re.M)) for room, body in sections if room != "web"}
    rooms = {path.parent.relative_to(ROOT).as_posix() for top in CODE for path in (ROOT / top).rglob("__init__.py")}
    files = {room: {path.name for path in (ROOT / room).glob("*.py")} - {"__init__.py"} for room in rooms}
    files["streamcache"] = {path.name for path in ROOT.glob("*.py")} - {"__init__.py", "dev.py"}
    assert mapped == {room: names for room, names in files.items() if names}


def test_texts_avoid_words_that_hide_who_acts():
    """See "plain English" in CONTRIBUTING.md. The pattern must not match itself."""
    avoided = re.compile(r"(?i)(no|some)body(?![a-z])|(?<![a-z])(who)ever|(?<![a-z])ane[w](?![a-z])|at han[d](?![a-z])")
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for top in (*CODE, "tests", "bench", "web", "docs", ".")
        for file in ((ROOT / top).glob("*.*") if top == "." else (ROOT / top).rglob("*.*"))
        if file.suffix in (".py", ".md", ".js")
        for match in avoided.finditer(file.read_text(encoding="utf-8"))
    ]
    assert found == []
