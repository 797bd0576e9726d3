"""Export: the trained adapters as one LoRA file, with the key naming and metadata that other tools read."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from ..dataset_cache import replace_file
from .adapters import Axis, Network
from .denoiser import NAMINGS, Denoiser, Naming
from .errors import TrainError

log = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PREDICTIONS = {"eps": "epsilon", "v": "v", "flow": "flow"}

# The part of a file that the older hash of sd-webui-additional-networks covers.
LEGACY_HASH_AT, LEGACY_HASH_SIZE = 0x100000, 0x10000


def dora_axis(naming: Naming) -> Axis:
    """The DoRA axis that readers of this naming apply as it was trained."""
    return "output" if naming == "diffusers" else "input"


def to_tensors(
    network: Network, denoiser: Denoiser, naming: Naming, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The tensors of the file. Alphas stay float32; diffusers' naming has no alpha: it is multiplied into `lora_B`."""
    if naming not in NAMINGS:
        raise TrainError(f'naming: found "{naming}", expected one of {", ".join(NAMINGS)}')
    prefixes = denoiser.export_names(naming)
    tensors = dict(network.carried)
    for name, adapter in network.items():
        parts = adapter.to_parts()
        if naming == "diffusers":
            parts = _peft_parts(parts, name)
        tensors |= {f"{prefixes[name]}.{part}": value for part, value in parts.items()}
    return {key: _stored(key, value, dtype) for key, value in sorted(tensors.items())}


def describe(
    network: Network, denoiser: Denoiser, title: str, finished_at: float, facts: Mapping[str, object]
) -> dict[str, str]:
    """The metadata of a file. `facts` (dataset_id, steps, seed, learning_rate, …) become `ss_…`; None is skipped."""
    factors = [adapter.factors for _, adapter in network.items() if adapter.factors is not None]
    kinds = sorted({factor.kind for factor in factors})
    modules = {factor.network_module for factor in factors}
    known = {
        "output_name": title,
        "network_module": modules.pop() if len(modules) == 1 else "lycoris.kohya",
        "network_dim": max((factor.rank for factor in factors), default=None),
        "network_alpha": max((factor.alpha for factor in factors), default=None),
        "network_args": _json(
            {"algo": ", ".join(kinds), "dora": any(a.magnitude is not None for _, a in network.items())}
        ),
        "training_finished_at": finished_at,
        **facts,
    }
    date = datetime.fromtimestamp(finished_at, timezone.utc)
    return {f"ss_{name}": _text(value) for name, value in known.items() if value is not None} | {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"{getattr(denoiser, 'architecture', 'unknown')}/lora",
        "modelspec.implementation": "https://github.com/comfyanonymous/ComfyUI",
        "modelspec.title": title,
        "modelspec.date": date.isoformat(timespec="seconds"),
        "modelspec.prediction_type": PREDICTIONS[denoiser.schedule.prediction],
    }


def save(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Path:
    """Write one safetensors file atomically, with hashes of its tensors in the metadata."""
    path = Path(path)
    tensors = dict(tensors)
    complete = {**metadata, **_hashes(tensors, metadata)}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, safetensors.torch.save(tensors, complete))
    log.info("Saved %d tensors (%.1f MB) to %s", len(tensors), path.stat().st_size / 1e6, path.name)
    return path


def _peft_parts(parts: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """PEFT's names: up and down only (mid is multiplied into down), no alpha, magnitudes along the output axis."""
    if "lora_up.weight" not in parts:
        return parts
    up, down, alpha = parts.pop("lora_up.weight"), parts.pop("lora_down.weight"), parts.pop("alpha")
    mid = parts.pop("lora_mid.weight", None)
    if mid is not None:
        down = torch.einsum("mn...,nj->mj...", mid.float(), down.flatten(1).float())
    parts |= {"lora_A.weight": down, "lora_B.weight": up * (alpha / down.shape[0])}
    scale = parts.get("dora_scale")
    if scale is not None and scale.shape[0] != 1:
        parts["lora_magnitude_vector"] = parts.pop("dora_scale").flatten()
    elif scale is not None:
        log.warning("%s: diffusers' naming has no key for magnitudes along the input axis; saved as dora_scale", name)
    return parts


def _stored(key: str, value: Tensor, dtype: torch.dtype | None) -> Tensor:
    keep = dtype is None or key.endswith(".alpha") or not value.is_floating_point()
    return value.detach().to("cpu", value.dtype if keep else dtype).contiguous()


def _hashes(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    # As kohya's scripts compute them: over the file with only the ss_ metadata.
    content = safetensors.torch.save(tensors, {k: v for k, v in metadata.items() if k.startswith("ss_")})
    start = 8 + int.from_bytes(content[:8], "little")
    whole = hashlib.sha256(memoryview(content)[start:]).hexdigest()
    piece = memoryview(content)[LEGACY_HASH_AT : LEGACY_HASH_AT + LEGACY_HASH_SIZE]
    return {
        "sshs_model_hash": whole,
        "sshs_legacy_hash": hashlib.sha256(piece).hexdigest()[:8],
        "modelspec.hash_sha256": f"0x{whole}",
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else _json(value) if isinstance(value, (dict, list, tuple)) else str(value)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
