"""The running ComfyUI: its folders, its progress bar and events, and which node is running."""

from .asking import asker
from .codecs import register_host_types
from .events import asking_client, caches_changed, tell_pages
from .folders import cache_roots, export_root, source_roots, state_root
from .lora_folders import find_lora, list_loras, lora_folder, lora_stamp, runs_folder
from .server import NodeProgress

__all__ = [
    "NodeProgress",
    "asker",
    "asking_client",
    "cache_roots",
    "caches_changed",
    "export_root",
    "find_lora",
    "list_loras",
    "lora_folder",
    "lora_stamp",
    "register_host_types",
    "runs_folder",
    "source_roots",
    "state_root",
    "tell_pages",
]
