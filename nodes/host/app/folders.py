"""ComfyUI's folders that the pack reads from and writes to, and the LoRA files in them."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import folder_paths
import safetensors.torch
from comfy.cli_args import args
from torch import Tensor

from ....dataset_cache import curate, normal_form, replace_file
from ....lora_train import TrainError

CACHES = "streamcache"  # the folder below output, and the key under which users register further folders
EXPORTS = "streamcache_export"
LORAS = "loras"
RUNS = "streamcache_runs"
RECIPES = "streamcache_recipes"  # the key under which users register further folders of recipes
NO_LORA = "[none]"
NO_RECIPE = "[none]"
EXAMPLES_LOCKED = (
    "the example images come with StreamCache and are read-only; to edit them, add a copy: Add an example dataset in "
    "the Datasets tab, or copy the folder to ComfyUI's input folder"
)
EXAMPLES = Path(__file__).resolve().parents[3] / "example_images"  # come with the pack


def cache_roots() -> list[Path]:
    """Where caches are: `output/streamcache`, then the folders that the user registered under the key `streamcache`."""
    registered = folder_paths.folder_names_and_paths.get(CACHES, ([], ()))[0]
    own = os.path.join(folder_paths.get_output_directory(), CACHES)
    return [Path(path) for path in dict.fromkeys([own, *registered])]


def export_root() -> Path:
    """Where exported copies of caches go."""
    return Path(folder_paths.get_output_directory()) / EXPORTS


def source_roots() -> dict[str, list[Path]]:
    """Where images may be read from, by the label that a folder's name may begin with."""
    datasets = folder_paths.folder_names_and_paths.get("datasets", ([], ()))[0]
    return {
        "input": [Path(folder_paths.get_input_directory())],
        "datasets": [Path(path) for path in datasets],
        "examples": [EXAMPLES],
    }


def list_examples() -> dict[str, Path]:
    """The folders of example images that come with the pack, by name."""
    return {folder.name: folder for folder in sorted(EXAMPLES.iterdir()) if folder.is_dir()}


def protect_examples() -> None:
    """Nothing edits the example images: an update of the pack would undo it."""
    curate.protect_folder(EXAMPLES, EXAMPLES_LOCKED)


def input_root() -> Path:
    """Where users add images."""
    return Path(folder_paths.get_input_directory())


def max_upload_bytes() -> int:
    """The longest body that ComfyUI's own upload route takes."""
    return round(args.max_upload_size * 1024 * 1024)


def state_root() -> Path:
    """Where the pack remembers source files. ComfyUI serves no file of its system user folders."""
    return Path(folder_paths.get_system_user_directory(CACHES))


def lora_folder() -> Path:
    """`output/loras`, which is on the search path of ComfyUI's LoRA loaders."""
    return Path(folder_paths.get_output_directory()) / LORAS


def runs_folder() -> Path:
    """Outside `output/loras`: LoRA loaders would list the saved states of runs too."""
    return Path(folder_paths.get_output_directory()) / RUNS


def register_recipes() -> None:
    """People put recipes of their own into this folder of ComfyUI's user directory."""
    own = Path(folder_paths.get_user_directory()) / "default" / CACHES / "recipes"
    folders, extensions = folder_paths.folder_names_and_paths.get(RECIPES, ([], set()))
    folder_paths.folder_names_and_paths[RECIPES] = (list(dict.fromkeys([str(own), *folders])), extensions | {".toml"})


def list_recipes() -> list[str]:
    """The files in the folders of recipes. ComfyUI caches the list until a folder changes."""
    return [NO_RECIPE, *folder_paths.get_filename_list(RECIPES)]


def find_recipe(name: str) -> Path | None:
    """The path of a recipe by its name in that list; None for none."""
    if name in ("", NO_RECIPE):
        return None
    path = folder_paths.get_full_path(RECIPES, name) if name in list_recipes() else None
    if path is None:
        raise TrainError(f'file = "{name}": recipe not found in ComfyUI; choose one from the list')
    return Path(path)


def list_loras() -> list[str]:
    """The files that ComfyUI's LoRA loaders list. ComfyUI caches the list until a folder changes."""
    return [NO_LORA, *folder_paths.get_filename_list(LORAS)]


def find_lora(name: str, setting: str = "start_from") -> str:
    """The path of a LoRA by its name in that list; empty for none."""
    if name in ("", NO_LORA):
        return ""
    known = list_loras()
    found = [name] if name in known else [other for other in known if normal_form(other) == normal_form(name)]
    path = folder_paths.get_full_path(LORAS, found[0]) if len(found) == 1 else None
    if path is None:
        raise TrainError(f'{setting} = "{name}": LoRA not found in ComfyUI; choose one from the list')
    return path


def store_lora(tensors: Mapping[str, Tensor]) -> Path:
    """A LORA_MODEL as a file among ComfyUI's temporary ones, named by its content: the same LoRA is the same file."""
    plain = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in sorted(tensors.items())}
    content = safetensors.torch.save(plain)
    name = f"{hashlib.blake2b(content, digest_size=8).hexdigest()}.safetensors"
    path = Path(folder_paths.get_temp_directory()) / CACHES / name
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    return path


def lora_stamp(path: str | Path) -> tuple[int, int] | None:
    """Changes with the file; None if there is no file."""
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if found else None
