"""The configuration of a PEFT adapter: where its alphas are, since PEFT's tensors have none."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import TrainError

PEFT_KEY = "lora_adapter_metadata"  # under which diffusers stores the configuration in a file's header
_FILE, _CONFIG = "adapter_model.safetensors", "adapter_config.json"  # as PEFT itself saves them
_WRAPPING = "base_model.model."
_DENOISERS = ("transformer", "unet")  # diffusers' names for the part of a pipeline that is trained
_LONGEST, _MOST_STEPS = 1000, 10**7


def read_peft_config(path: Path) -> str:
    """The text of the configuration that PEFT saves next to its file, or ""."""
    config = path.with_name(_CONFIG)
    if path.name != _FILE or not config.is_file():
        return ""
    try:
        return config.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainError(f"{config}: cannot be read ({error}); the LoRA's alphas are in it") from None


def peft_alpha(metadata: Mapping[str, str], prefix: str, rank: int, where: str) -> float | None:
    """Alpha for a scale of alpha / rank, as PEFT scales this module; None without a configuration."""
    if PEFT_KEY not in metadata:
        return None
    try:
        facts, module = _component(json.loads(metadata[PEFT_KEY]), prefix)
        alpha = facts.get("lora_alpha")
        for pattern, own in (facts.get("alpha_pattern") or {}).items():
            _check_effort(pattern, module)
            if re.match(rf"(.*\.)?({pattern})$", module):
                alpha = own
                break
        if alpha is None:
            return None
        value = float(alpha) * (rank**0.5 if facts.get("use_rslora") else 1)
        if not math.isfinite(value):
            raise ValueError(f"alpha is {value}")
        return value
    except (ValueError, TypeError, AttributeError, RecursionError, re.error) as error:
        raise TrainError(f"{where}: its alpha is unknown: the configuration of PEFT cannot be used ({error})") from None


def _component(facts: Any, prefix: str) -> tuple[dict[str, Any], str]:
    """The settings for the part of the pipeline that `prefix` is in, and the module's name within that part."""
    part, _, module = prefix.partition(".")
    own = {key.removeprefix(f"{part}."): value for key, value in facts.items() if key.startswith(f"{part}.")}
    if own:
        return own, module
    parts = {key.rpartition(".")[0] for key in facts if key.rpartition(".")[2] == "lora_alpha"}
    if not parts or "" in parts:
        return facts, prefix.removeprefix(_WRAPPING)
    if part.startswith("text_encoder"):  # the file describes other parts only
        return {}, module
    others = sorted(name for name in parts if not name.startswith("text_encoder"))
    one = next((name for name in _DENOISERS if name in parts), others[0] if len(others) == 1 else None)
    if one is None:
        raise ValueError(f"lora_alpha is ambiguous: found for {', '.join(sorted(parts))}, not for this layer's part")
    own = {key.removeprefix(f"{one}."): value for key, value in facts.items() if key.startswith(f"{one}.")}
    return own, prefix.removeprefix(_WRAPPING)


def _check_effort(pattern: str, module: str) -> None:
    """Refuse a regular expression that could backtrack for seconds: it comes from a file of unknown origin."""
    rest = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern[:_LONGEST], flags=re.DOTALL).replace("(?:", "(")
    unbounded = len(re.findall(r"[*+{]", rest))
    steps = (module.count(".") + 1) * (len(module) + 1) ** unbounded * 2 ** rest.count("?")
    nested = "(?" in rest  # look-around and the like
    while group := re.search(r"\(([^()]*)\)([*+{]?)", rest):
        steps *= 1 + group[1].count("|")
        nested |= bool(group[2])
        rest = rest[: group.start()] + "x" + rest[group.end() :]
    if len(pattern) > _LONGEST or nested or steps > _MOST_STEPS:
        raise ValueError(f'alpha_pattern "{pattern[:60]}" is too complex; expected a module name or a simple pattern')
