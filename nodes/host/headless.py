"""Runs a command of the pack in ComfyUI's own Python, with its models and without a server.

    python headless.py <ComfyUI folder> <ComfyUI options as JSON> <command> …

The command line starts this file with ComfyUI's interpreter; ComfyUI's main.py does not run.
"""

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

PACK = Path(__file__).resolve().parents[2]
OUTPUT_MODELS = (
    "checkpoints",
    "clip",
    "vae",
    "diffusion_models",
    "loras",
)  # folders in output that ComfyUI lists


def main(host: str, options: str, *command: str) -> int:
    given = json.loads(options)
    # Ctrl-C while torch is imported would print a traceback or crash; the command that started this reports it.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    enter_host(host, given)
    register_package()
    import torch

    contract = importlib.import_module("streamcache.nodes.host.contract")
    try:
        contract.check_host()
        importlib.import_module("streamcache.nodes.host.headless").prepare()
    except contract.HostChanged as error:
        print(f"streamcache: {error}", file=sys.stderr)
        return 1
    except (RuntimeError, AssertionError) as error:  # ComfyUI looks for a GPU when its modules are imported
        if "--cpu" in given or getattr(torch, "accelerator", torch.cuda).is_available():
            raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        print(f"streamcache: ComfyUI found no GPU ({reason[0]}); add --comfyui-args=--cpu", file=sys.stderr)
        return 1
    place: Any = importlib.import_module("streamcache.cli.host")
    place.INSIDE = True
    command_line = importlib.import_module("streamcache.cli.main")
    signal.signal(signal.SIGINT, interrupt)
    with torch.inference_mode():
        return command_line.main(command)


def enter_host(host: str, options: Sequence[str]) -> None:
    """Make ComfyUI's modules importable, with its options and folders set up as in its main.py."""
    sys.path[0] = host
    sys.argv = ["main.py", *options]
    import comfy.options

    comfy.options.enable_args_parsing()
    import cuda_malloc  # noqa: F401  selects torch's allocator by the options
    import folder_paths
    import utils.extra_config
    from comfy.cli_args import args

    configs = [path for group in args.extra_model_paths_config or () for path in group]
    for path in (os.path.join(host, "extra_model_paths.yaml"), *configs):
        if os.path.isfile(path):
            utils.extra_config.load_extra_path_config(path)
    if args.output_directory:
        folder_paths.set_output_directory(os.path.abspath(args.output_directory))
    if args.input_directory:
        folder_paths.set_input_directory(os.path.abspath(args.input_directory))
    if args.user_directory:
        folder_paths.set_user_directory(os.path.abspath(args.user_directory))
    for kind in OUTPUT_MODELS:
        folder_paths.add_model_folder_path(kind, os.path.join(folder_paths.get_output_directory(), kind))


def register_package() -> None:
    """Register the pack as `streamcache`, wherever its folder is and whatever it is called."""
    spec = importlib.util.spec_from_file_location(
        "streamcache", PACK / "__init__.py", submodule_search_locations=[str(PACK)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["streamcache"] = package
    spec.loader.exec_module(package)


def prepare() -> None:
    """What the extension does at start, except for the server."""
    from ...dataset_cache import use_memory_folder
    from .app import register_host_types, state_root

    register_host_types()
    use_memory_folder(state_root())


def leave(code: int) -> NoReturn:
    """End the process, whose work is done. Python would also take down torch, whose threads may abort it then."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a pipe whose reader is gone, or closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(*sys.argv[1:]))
