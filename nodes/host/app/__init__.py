"""The running ComfyUI: its folders, progress bars and events, which node is running, and its tensor types."""

from .codecs import register_host_types
from .folders import (
    cache_roots,
    export_root,
    find_lora,
    find_recipe,
    input_root,
    list_examples,
    list_loras,
    list_recipes,
    lora_folder,
    lora_stamp,
    max_upload_bytes,
    protect_examples,
    register_recipes,
    runs_folder,
    source_roots,
    state_root,
    store_lora,
)
from .server import NodeProgress, caches_changed, caller_of, current_client, send_event

__all__ = [
    "NodeProgress",
    "cache_roots",
    "caches_changed",
    "caller_of",
    "current_client",
    "export_root",
    "find_lora",
    "find_recipe",
    "input_root",
    "list_examples",
    "list_loras",
    "list_recipes",
    "lora_folder",
    "lora_stamp",
    "max_upload_bytes",
    "protect_examples",
    "register_host_types",
    "register_recipes",
    "runs_folder",
    "send_event",
    "source_roots",
    "state_root",
    "store_lora",
]
