"""Adafactor at a fixed learning rate, as other trainers use it for LoRAs.

It equals transformers' Adafactor with `scale_parameter`, `relative_step` and `warmup_init` off. torch's own multiplies
each step by max(1e-3, RMS of the weight), which hardly trains a new LoRA: half of its weights are zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

DECAY = 0.8  # the second moment forgets less with every step: beta2 = 1 - step ** -DECAY
TINY = 1e-30  # added to squared gradients
CLIP = 1.0  # largest RMS of an update, before the learning rate


class Adafactor(torch.optim.Optimizer):
    """The second moment of a matrix is stored as one row and one column; there is no first moment.

    The state has the names and shapes of torch's Adafactor, whose states can be loaded.
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - no closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["weight_decay"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        # torch has rounded the moments to the dtype of the parameters.
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                device = "cpu" if name == "step" else parameter.device
                self.state[parameter][name] = torch.as_tensor(value).to(device, torch.float32, copy=True)

    def _update(self, parameter: Tensor, rate: float, decay: float) -> None:
        assert parameter.grad is not None
        gradient, state = parameter.grad.float(), self.state[parameter]
        if not state:
            state |= _new_state(gradient)
        state["step"] += 1
        forget = float(state["step"]) ** -DECAY
        update = gradient.square().add_(TINY)
        if "row_var" in state:
            row = state["row_var"].lerp_(update.mean(-1, keepdim=True), forget)
            column = state["col_var"].lerp_(update.mean(-2, keepdim=True), forget)
            update = (row / row.mean(-2, keepdim=True)).rsqrt_() * column.rsqrt() * gradient
        else:
            update = state["variance"].lerp_(update, forget).rsqrt() * gradient
        update.div_((update.square().mean().sqrt() / CLIP).clamp_(min=1.0))
        weight = parameter.float()  # the parameter itself, if it is float32
        weight.sub_(weight, alpha=decay * rate).sub_(update.mul_(rate))
        if weight is not parameter:
            parameter.copy_(weight)


def _new_state(gradient: Tensor) -> dict[str, Tensor]:
    step, shape = torch.tensor(0.0), gradient.shape
    if gradient.ndim < 2:
        return {"step": step, "variance": torch.zeros_like(gradient)}
    rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
    return {"step": step, "row_var": gradient.new_zeros(rows), "col_var": gradient.new_zeros(columns)}
