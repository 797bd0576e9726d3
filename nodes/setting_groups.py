"""Which group a setting is shown in, and which settings only apply with others: nodes hide what does not apply."""

from __future__ import annotations

from typing import Any

from ..dataset_cache import Setting

_ADAM = ("AdamW", "Adam", "Prodigy", "AdamW8bit", "AdamWScheduleFree")
_MOMENTUM = (*_ADAM, "SGD", "SGDScheduleFree")
_DIVISIBLE = ("lora", "loha", "lokr")  # kinds that add to the weights of a layer, not to its output
OFF = None  # "is not at its default"
# setting → the others that it needs, each with the values that it applies with; "a|b" is one of the two
NEEDS: dict[str, dict[str, tuple[Any, ...] | None]] = {
    "dora": {"adapter": _DIVISIBLE},
    "dora_axis": {"adapter": _DIVISIBLE, "dora": (True,)},
    "adapter_dropout": {"adapter": _DIVISIBLE},
    "lokr_factor": {"adapter": ("lokr",)},
    "lora_plus": {"adapter": ("lora",)},
    "scale_weight_norms": {"adapter": ("lora",)},
    "beta1": {"optimizer": _MOMENTUM, "other_optimizer": ("",)},
    "beta2": {"optimizer": _ADAM, "other_optimizer": ("",)},
    "epsilon": {"optimizer": _ADAM, "other_optimizer": ("",)},
    "lr_cycles": {"lr_schedule": ("cosine_restarts",)},
    "lr_power": {"lr_schedule": ("polynomial",)},
    "lr_floor": {"lr_schedule": OFF},
    "huber_delta": {"loss": ("huber",)},
    "huber_schedule": {"loss": ("huber",)},
    "min_snr_gamma": {"weighting": ("min_snr",)},
    "logit_mean": {"timesteps": ("logit_normal",)},
    "logit_std": {"timesteps": ("logit_normal",)},
    "multires_discount": {"multires_noise": OFF},
    "unmasked_weight": {"masked_loss": (True,)},
    "normalise_masks": {"masked_loss": (True,)},
    "preservation_share": {"preservation_weight": OFF},
    "preservation_caption": {"preservation_weight": OFF},
    "guidance_schedule": {"guidance_target": OFF},
    "offload_share": {"offload": (True,)},
    "validation_every": {"validation_share": OFF},
    "validation_samples": {"validation_share": OFF},
    "keep_exports": {"export_every|export_epochs": OFF},
    "keep_exports_by": {"export_every|export_epochs": OFF, "keep_exports": OFF},
}


def shown_with(setting: Setting) -> dict[str, Any]:
    """For the front end, which hides the inputs of other groups and those that do not apply."""
    needs = {name: list(values) if values is not None else None for name, values in NEEDS.get(setting.name, {}).items()}
    return {"streamcache": {"group": setting.limits.group, "needs": needs}}
