"""Export: the trained adapters as one LoRA file, with the key naming and metadata that other tools read."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from ..dataset_cache import byte_count, replace_file
from ..errors import TrainError
from .adapters import Adapter, Axis, Network, split_parts, unsplittable
from .denoiser import NAMINGS, Denoiser, Naming, OtherNames

log = logging.getLogger("streamcache")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DIFFUSERS = "transformer."  # begins the keys of diffusers' models that are not a UNet
PARTIAL = "streamcache.partial"  # in the metadata of a file that an interrupted run has left
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
    check_names(network, denoiser, naming)
    places = _places(network, denoiser, naming)
    tensors = dict(network.carried)
    for name, adapter in network.items():
        whole = _file_parts(adapter)
        for prefix, rows in places[name].items():
            parts = whole if rows is None else split_parts(whole, rows)
            parts = peft_parts(parts, name) if naming == "diffusers" else parts
            tensors |= {f"{prefix}.{part}": value for part, value in parts.items()}
    return {key: _stored(key, value, dtype) for key, value in sorted(tensors.items())}


def check_names(network: Network, denoiser: Denoiser, naming: Naming) -> None:
    """Refuse a naming that has no name for one of the network's modules, or splits one that cannot be split."""
    if naming not in NAMINGS:
        raise TrainError(f'naming: found "{naming}", expected one of {", ".join(NAMINGS)}')
    wanted, places = dict(network.items()), _places(network, denoiser, naming)
    missing = [name for name in wanted if name not in places]
    if missing:
        others = [other for other in NAMINGS if not wanted.keys() - _places(network, denoiser, other).keys()]
        raise TrainError(
            f'naming = "{naming}": has no name for {len(missing)} of {len(wanted)} layers of this model '
            f"({missing[0]}, …); choose {' or '.join(others) or 'other targets'}"
        )
    for name, adapter in wanted.items():
        odd = unsplittable(adapter.to_parts()) if None not in places[name].values() else ""
        if odd:
            raise TrainError(
                f'naming = "{naming}": splits {name} into {", ".join(places[name])}, but {odd} cannot be split; choose '
                "comfyui, or train a LoRA"
            )


def warn_of_unread_names(network: Network, denoiser: Denoiser, naming: Naming) -> None:
    """Warn of names that the program which trains does not read again: it reads files of diffusers only in part."""
    if naming != "diffusers" or not isinstance(denoiser, OtherNames):
        return
    known, places = denoiser.other_names(), _places(network, denoiser, naming)
    prefixes = [prefix for name, _ in network.items() for prefix in places[name]]
    unread = [prefix for prefix in prefixes if prefix not in known]
    if unread:
        log.warning(
            'naming = "diffusers": the LoRA loader here does not know %d of the %d names that diffusers has (%s, …); '
            "choose comfyui for a file to load here",
            *(len(unread), len(prefixes), unread[0]),
        )


def _places(network: Network, denoiser: Denoiser, naming: Naming) -> dict[str, dict[str, Sequence[int] | None]]:
    """Module name → its prefixes in the file, each with the module's rows that it stands for (None: all)."""
    places: dict[str, dict[str, Sequence[int] | None]] = {
        name: {prefix: None} for name, prefix in denoiser.export_names(naming).items()
    }
    if naming != "diffusers" or not isinstance(denoiser, OtherNames):
        return places
    outputs = {name: adapter.layer.outputs for name, adapter in network.items() if name not in places}
    split: dict[str, dict[str, Sequence[int] | None]] = {}
    taken: dict[str, set[int]] = {}
    for prefix, place in denoiser.other_names().items():
        name, rows = place.module, set(place.rows or ())
        if name in outputs and rows and prefix.startswith(DIFFUSERS) and not rows & taken.setdefault(name, set()):
            split.setdefault(name, {})[prefix] = place.rows
            taken[name] |= rows
    return places | {name: found for name, found in split.items() if len(taken[name]) == outputs[name]}


def describe(
    network: Network,
    denoiser: Denoiser,
    title: str,
    finished_at: float,
    facts: Mapping[str, object],
    partial: str = "",
    trigger: str = "",
) -> dict[str, str]:
    """The metadata of a file. `facts` (dataset_id, steps, seed, learning_rate, …) become `ss_…`; None is skipped.

    `partial` says how far an interrupted run has come, such as "step 1200 of 3000".
    """
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
        "base_model_version": getattr(denoiser, "base_version", None),
        **facts,
    }
    date = datetime.fromtimestamp(finished_at, timezone.utc)
    return {f"ss_{name}": _text(value) for name, value in known.items() if value is not None} | {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"{getattr(denoiser, 'architecture', 'unknown')}/lora",
        "modelspec.implementation": "https://github.com/comfyanonymous/ComfyUI",
        "modelspec.title": f"{title} ({partial})" if partial else title,
        "modelspec.date": date.isoformat(timespec="seconds"),
        "modelspec.prediction_type": PREDICTIONS[denoiser.schedule.prediction],
        **({"modelspec.trigger_phrase": trigger} if trigger else {}),
        **({PARTIAL: partial} if partial else {}),
    }


def file_bytes(network: Network, dtype: torch.dtype) -> int:
    """About the size of a file: that of its tensors."""
    parts = [value for _, adapter in network.items() for value in adapter.to_parts().values()]
    return sum(value.numel() * dtype.itemsize for value in [*parts, *network.carried.values()])


def count_files(every: int, epoch: int, accumulate: int, steps: int, step: int = 0, position: int = 0) -> int:
    """How many files along the way are due after `step` and its batch: each `every` steps and each `epoch` batches.

    One that is due by both counts twice. The last one of the run does not count.
    """
    by_steps = (steps - 1) // every - step // every if every else 0
    end = position + (steps - 1 - step) * accumulate
    return by_steps + (end // epoch - position // epoch if epoch else 0)


def check_room(final: Path, size: int, due: int, every: int, epochs: int) -> None:
    """Refuse export_every or export_epochs if so many files of this size, and the final one, would fill the disk."""
    # The folder need not exist yet.
    folder = next(folder for folder in final.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(folder).free
    if (due + 1) * size <= free:
        return
    setting = f"export_every = {every}" if every else f"export_epochs = {epochs}"
    fitting, sizes = free // size - 2, (byte_count(size), byte_count((due + 1) * size), byte_count(free))
    if fitting < 1:
        raise TrainError(
            f"{setting}: {due + 1:,} LoRA files of {sizes[0]} are {sizes[1]}, and the disk of {final.parent} "
            f"has {sizes[2]} free; free disk space, or save to another disk"
        )
    raise TrainError(
        f"{setting}: {due + 1:,} LoRA files of {sizes[0]} are {sizes[1]}, and the disk of {final.parent} has "
        f"{sizes[2]} free; set keep_exports = {fitting} or less, or a longer interval"
    )


def save(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Path:
    """Write one safetensors file atomically, with hashes of its tensors in the metadata."""
    path = Path(path)
    tensors = dict(tensors)
    complete = {**metadata, **_hashes(tensors, metadata)}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, safetensors.torch.save(tensors, complete))
    log.info("Saved %d tensors (%s) to %s", len(tensors), byte_count(path.stat().st_size), path.name)
    return path


def _file_parts(adapter: Adapter) -> dict[str, Tensor]:
    """The parts that ComfyUI applies as they were trained."""
    parts, factors = adapter.to_parts(), adapter.factors
    if factors is not None and adapter.diff is not None and adapter.magnitude is None and not factors.applies_to_output:
        # ComfyUI applies one change per weight, so that of the factors is added to the difference.
        kept = {name: parts[name] for name in ("diff_b",) if name in parts}
        return {"diff": adapter.diff + factors.weight().detach(), **kept}
    mid = parts.get("lora_mid.weight")
    return _without_mid(parts) if mid is not None and mid.ndim != 4 else parts  # it expects that of a 2-D convolution


def _without_mid(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    mid, down = parts.pop("lora_mid.weight", None), parts["lora_down.weight"]
    if mid is not None:
        parts["lora_down.weight"] = torch.einsum("mn...,nj->mj...", mid.float(), down.flatten(1).float())
    return parts


def peft_parts(parts: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """PEFT's names: up and down only (mid is multiplied into down), no alpha, magnitudes along the output axis."""
    if "lora_up.weight" not in parts:
        return parts
    parts = _without_mid(parts)
    up, down, alpha = parts.pop("lora_up.weight"), parts.pop("lora_down.weight"), parts.pop("alpha")
    parts |= {"lora_A.weight": down, "lora_B.weight": up * (alpha / down.shape[0])}
    scale = parts.get("dora_scale")
    if scale is not None and scale.shape[0] != 1:
        parts["lora_magnitude_vector"] = parts.pop("dora_scale").flatten()
    elif scale is not None:
        log.warning("%s: diffusers' naming has no key for magnitudes along the input axis; saved as dora_scale", name)
    return parts


def _stored(key: str, value: Tensor, dtype: torch.dtype | None) -> Tensor:
    keep = dtype is None or key.endswith(".alpha") or not value.is_floating_point()
    # Always a copy: on the CPU the weights themselves change again when the average is taken off.
    return value.detach().to("cpu", value.dtype if keep else dtype, copy=True).contiguous()


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
