"""Registers the repository as the package `streamcache`, as ComfyUI registers it under its folder's name."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def register_package() -> None:
    if "streamcache" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "streamcache", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec and spec.loader
    package = importlib.util.module_from_spec(spec)
    sys.modules["streamcache"] = package
    spec.loader.exec_module(package)


def run_python(code: str, *arguments: str) -> list[str]:
    """The command that runs this code in a new Python process that knows the package."""
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    start += "from package import register_package; register_package()\n"
    return [sys.executable, "-c", start + code, *arguments]
