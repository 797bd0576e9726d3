"""Runs one scenario in ComfyUI's own Python, set up as by its main.py, and writes the result as JSON.

    python inside.py <scenario> <host folder> <base directory> <result file>

A scenario is a module of this folder with `run(base: Path) -> dict`. It runs in inference mode, as nodes do.
"""

import asyncio
import importlib
import json
import sys
from pathlib import Path

# A script in ComfyUI's Python: the tests' packages are not importable yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from package import register_package

sys.path.pop(0)


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


if __name__ == "__main__":
    main(*sys.argv[1:])
