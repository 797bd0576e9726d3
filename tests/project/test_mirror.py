"""Tests mirror the tree: each product file has a test file of its name, or a reason why others test it."""

from pathlib import Path

import streamcache

ROOT = Path(streamcache.__file__).parent
LAYERS = ("dataset_cache", "lora_train", "reference", "nodes", "cli")
SMALL = 60  # lines; shorter files may be tested with their neighbors
ELSEWHERE = {
    # One contract for all kinds of adapters.
    "lora_train/adapters/adapter.py": "lora_train/adapters/test_adapters.py",
    "lora_train/adapters/factors.py": "lora_train/adapters/test_adapters.py",
    "lora_train/adapters/layer.py": "lora_train/adapters/test_adapters.py",
    "lora_train/adapters/loha.py": "lora_train/adapters/test_adapters.py",
    "lora_train/adapters/lora.py": "lora_train/adapters/test_adapters.py",
    # Only seen through what uses them.
    "lora_train/parts.py": "lora_train/test_session.py",
    "lora_train/forecast/peak.py": "lora_train/forecast/test_forecast.py",
    "lora_train/forecast/shapes.py": "lora_train/forecast/test_forecast.py",
    "dataset_cache/ahead/shelf.py": "dataset_cache/ahead/test_read_ahead.py",
    "dataset_cache/sources/folder_files.py": "dataset_cache/sources/test_folder_source.py",
    "dataset_cache/format/splitter.py": "dataset_cache/format/test_skeleton.py",
    "dataset_cache/index/blobs.py": "dataset_cache/upkeep/test_verify.py",
    "dataset_cache/index/index_file.py": "dataset_cache/index/test_index.py",
    "dataset_cache/index/passes.py": "promises/test_flat_memory.py",
    # An index of several files is tested where it grows.
    "dataset_cache/index/joined.py": "dataset_cache/write/test_growth.py",
    "dataset_cache/write/consistency.py": "dataset_cache/format/test_forged_index.py",
    "dataset_cache/upkeep/gather.py": "dataset_cache/upkeep/test_merge.py",
    "dataset_cache/index/merging.py": "dataset_cache/upkeep/test_merge.py",
    "dataset_cache/encode/changes.py": "dataset_cache/encode/test_splice.py",
    "dataset_cache/exchange/about.py": "dataset_cache/exchange/test_exporting.py",
    "dataset_cache/foreign/comfy_dataset.py": "dataset_cache/foreign/test_convert.py",
    "dataset_cache/foreign/comfy_shard.py": "dataset_cache/foreign/test_convert.py",
    "dataset_cache/remote/client.py": "dataset_cache/remote/test_fsspec_client.py",
    "dataset_cache/remote/obstore_client.py": "dataset_cache/remote/test_faults.py",
    "dataset_cache/stored_file.py": "dataset_cache/format/test_storage.py",
    "dataset_cache/upkeep/shard_state.py": "dataset_cache/upkeep/test_verify.py",
    "dataset_cache/write/rows.py": "dataset_cache/foreign/test_convert.py",
}
# These import ComfyUI, so tests/host runs them inside a real one, over its HTTP interface or node by node.
HOST = (
    "nodes/*.py",
    "nodes/host/**/*.py",
    "nodes/training/*.py",
    "nodes/grid/*.py",
    "nodes/library/saving.py",
    "nodes/server/*routes.py",
    "nodes/server/http.py",
)


def needs_comfyui(file: str) -> bool:
    return any(ROOT.joinpath(file) in ROOT.glob(pattern) for pattern in HOST)


def test_every_product_file_has_its_tests():
    missing = []
    for file in (f for layer in LAYERS for f in sorted((ROOT / layer).rglob("[!_]*.py"))):
        name = file.relative_to(ROOT).as_posix()
        small = len(file.read_text(encoding="utf-8").splitlines()) < SMALL
        mirror = ROOT / "tests" / Path(name).with_name(f"test_{file.name}")
        if not small and not needs_comfyui(name) and name not in ELSEWHERE and not mirror.exists():
            missing.append(f"{name}: write {mirror.relative_to(ROOT).as_posix()}, or name its tests in ELSEWHERE")
    assert not missing


def test_every_exception_is_needed_and_leads_to_tests():
    for file, tests in ELSEWHERE.items():
        assert (ROOT / file).exists() and (ROOT / "tests" / tests).exists(), file
        assert not (ROOT / "tests" / Path(file).with_name(f"test_{Path(file).name}")).exists(), file
    assert all(any(ROOT.glob(pattern)) for pattern in HOST)
