"""Rules for the whole project: packaging, layers, file sizes, and a README that names everything."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from urllib.parse import unquote

import pytest

import streamcache

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(streamcache.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOT_SHIPPED = ("tests", "bench", "pretrain")
LAYERS = {"dataset_cache": 0, "lora_train": 1, "nodes": 2, "cli": 2}
HOST_MODULES = {
    *("comfy", "comfy_api", "comfy_execution", "comfy_extras", "execution", "folder_paths"),
    *("latent_preview", "node_helpers", "nodes", "server"),
}


def python_files(*tops: str) -> list[Path]:
    """All Python files of the repository, or of these top folders, without environments and build outputs."""
    files = ROOT.rglob("*.py") if not tops else (f for top in tops for f in (ROOT / top).rglob("*.py"))
    outside = {"build", "dist", "demo", "node_modules"}
    parts = {file: file.relative_to(ROOT).parts[:-1] for file in files}
    return sorted(f for f, above in parts.items() if not any(p.startswith(".") or p in outside for p in above))


def shipped_files() -> list[Path]:
    return [file for file in python_files() if file.relative_to(ROOT).parts[0] not in (*NOT_SHIPPED, "dev.py")]


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Each imported module with its line number; the pack's own modules as `streamcache.…`."""
    package = ("streamcache", *file.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names if node.level)


def offences(files: list[Path], wrong) -> list[str]:
    return [
        f"{file.relative_to(ROOT).as_posix()}:{line} imports {module}"
        for file in files
        for line, module in imports(file)
        if wrong(file.relative_to(ROOT), module)
    ]


def test_requirements_txt_equals_the_declared_dependencies():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").split()
    assert lines == PROJECT["project"]["dependencies"] == ["xxhash"]


def pinned() -> list[str]:
    text = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    return re.findall(r"^([\w-]+)(?:\[\w+\])?==", text, re.MULTILINE)


def test_every_standalone_dependency_is_pinned_for_development():
    pins = re.findall(
        r"^([\w-]+)(?:\[\w+\])?==", (ROOT / "requirements-dev.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    extras = PROJECT["project"]["optional-dependencies"]
    named = [
        re.match(r"[\w-]+", need)[0]
        for need in extras["standalone"] + extras["run"] + extras["test"] + ["xxhash", "setuptools"]
    ]
    assert set(named) - {"streamcache"} <= set(pins)


def test_every_package_without_which_a_test_is_skipped_is_pinned_for_development():
    pins = re.findall(
        r"^([\w-]+)(?:\[\w+\])?==", (ROOT / "requirements-dev.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    texts = [path.read_text(encoding="utf-8") for path in python_files("tests")]
    named = {name for text in texts for name in re.findall(r'importorskip\("([\w-]+)', text)}
    packages = packages_distributions()  # `prodigyplus` belongs to prodigy-plus-schedule-free
    assert named and {package for name in named for package in packages.get(name, [name])} <= set(pins)


def test_pre_commit_uses_the_pinned_tools():
    pins = dict(re.findall(r"^(ruff|basedpyright)==(\S+)", (ROOT / "requirements-dev.txt").read_text("utf-8"), re.M))
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert f"rev: v{pins['ruff']}\n" in hooks
    assert f"basedpyright=={pins['basedpyright']}]" in hooks


def test_version_is_the_same_everywhere():
    assert PROJECT["project"]["version"] == streamcache.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(streamcache.__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M)
    assert re.fullmatch(r"\d+\.\d+\.\d+", streamcache.__version__)


def test_every_subpackage_is_in_the_wheel():
    folders = [file.parent.relative_to(ROOT).parts for file in shipped_files() if file.name == "__init__.py"]
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(".".join(("streamcache", *f)) for f in folders)


def test_every_recipe_is_in_the_wheel():
    room = ROOT / "lora_train" / "recipes"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["streamcache.lora_train.recipes"]
    assert {file for pattern in patterns for file in room.glob(pattern)} == set(room.rglob("*.toml")) != set()


def test_every_folder_with_code_is_a_package():
    bare = {file.parent for file in shipped_files() if not (file.parent / "__init__.py").exists()}
    assert not bare, "folders without __init__.py are missing from the wheel"


def test_comfyignore_keeps_tests_and_benchmarks_out_of_the_zip():
    ignored = (ROOT / ".comfyignore").read_text(encoding="utf-8").split()
    assert {"tests/", "bench/", "dev.py"} <= set(ignored)


def test_layers_point_one_way():
    def upwards(file: Path, module: str) -> bool:
        target = module.split(".")[1] if module.startswith("streamcache.") else ""
        return LAYERS.get(target, -1) > LAYERS[file.parts[0]]

    assert not offences(python_files(*LAYERS), upwards)


def test_lower_layers_do_not_import_comfyui():
    files = python_files("dataset_cache", "lora_train")
    assert not offences(files, lambda file, module: module.split(".")[0] in HOST_MODULES)


def test_only_nodes_import_comfyui():
    files = [ROOT / "__init__.py", *python_files("cli")]

    def known(file: Path, module: str) -> bool:
        entrypoint = file.name == "__init__.py" and module.startswith("comfy_api")
        return module.split(".")[0] in HOST_MODULES and not entrypoint

    assert not offences(files, known)


def test_imports_inside_the_package_are_relative():
    absolute = [
        f"{file.relative_to(ROOT).as_posix()}:{node.lineno}"
        for file in shipped_files()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "")])
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0)
        if (name or "").split(".")[0] == "streamcache"
    ]
    assert not absolute, "ComfyUI loads the pack under another name, where these imports fail"


def test_only_the_reader_of_foreign_shards_imports_pickle():
    def unpickles(file: Path, module: str) -> bool:
        top = module.split(".")[0]
        known = file.name == "foreign_shard.py"
        return top in {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"} and not known

    assert not offences(shipped_files(), unpickles)


def test_root_exports_no_node_class_mappings():
    # Even an empty mapping makes ComfyUI ignore comfy_entrypoint.
    assert not hasattr(streamcache, "NODE_CLASS_MAPPINGS")
    assert "NODE_CLASS_MAPPINGS" not in (ROOT / "__init__.py").read_text(encoding="utf-8")


def test_no_file_is_too_long():
    limits = {file: 700 if file.relative_to(ROOT).parts[0] in NOT_SHIPPED else 350 for file in python_files()}
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in limits}
    long = [f"{f.relative_to(ROOT).as_posix()}: {n} lines" for f, n in lengths.items() if n > limits[f]]
    assert not long, "split by noun"


def test_every_file_opens_with_a_sentence_on_what_it_owns():
    first_lines = {f: (ast.get_docstring(ast.parse(f.read_text(encoding="utf-8"))) or "") for f in python_files()}
    bare = [f.relative_to(ROOT).as_posix() for f, text in first_lines.items() if not re.match(r"\S.*[.:?]", text)]
    assert not bare


def test_readme_names_every_command():
    from streamcache.cli.main import COMMANDS

    assert [name for name in COMMANDS if f"streamcache {name}" not in README] == []


def test_readme_names_every_dev_command():
    from streamcache.dev import COMMANDS

    assert [name for name in COMMANDS if f"python dev.py {name}" not in README] == []


def test_readme_names_every_node():
    names = node_names()
    assert names or not (ROOT / "nodes").is_dir()
    assert [name for name in names if name not in README] == []


def test_readme_links_lead_somewhere():
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert [target for target in targets if not (ROOT / unquote(target)).exists()] == []


def node_names() -> list[str]:
    """The display names of all node schemas."""
    if not (ROOT / "nodes").is_dir():
        return []
    calls = (node for file in python_files("nodes") for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    schemas = (call for call in calls if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "Schema")
    given = ({keyword.arg: keyword.value for keyword in schema.keywords} for schema in schemas)
    return [ast.literal_eval(values["display_name"]) for values in given if "display_name" in values]


@pytest.mark.parametrize(
    "name", ["LICENSE", "README.md", "CHANGELOG.md", ".ci/run", ".comfyignore", "requirements.txt"]
)
def test_the_project_has(name: str):
    assert (ROOT / name).stat().st_size > 0
