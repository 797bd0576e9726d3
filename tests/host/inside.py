"""Runs one scenario in ComfyUI's own Python, set up as by its main.py, and writes the result as JSON.

    python inside.py <scenario> <host folder> <base directory> <result file>

A scenario is a module of this folder with `run(base: Path) -> dict`. It runs as a node does: under inference mode.
"""

import asyncio
import importlib
import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(scenario: str, host: str, base: str, result: str) -> None:
    enter_host(host, base)
    register_package()
    import torch

    module = importlib.import_module(f"streamcache.tests.host.{scenario}")
    with torch.inference_mode():
        outcome = module.run(Path(base))
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")


def enter_host(host: str, base: str) -> None:
    """After this, `import nodes` is ComfyUI's, with all stock nodes. Its options are read at the first import."""
    sys.path[0] = host
    sys.argv = ["main.py", "--cpu", "--base-directory", base]
    import comfy.options

    comfy.options.enable_args_parsing()
    import folder_paths

    import nodes

    folder_paths.add_model_folder_path("loras", str(Path(folder_paths.get_output_directory()) / "loras"))
    asyncio.run(nodes.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False))


def register_package() -> None:
    """The pack under a fixed name, as in tests/conftest.py."""
    spec = importlib.util.spec_from_file_location(
        "streamcache", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["streamcache"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    main(*sys.argv[1:])
