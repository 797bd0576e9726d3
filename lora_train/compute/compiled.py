"""`torch.compile` for a model's blocks, one by one; where it fails, training goes on without it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._dynamo import config as dynamo
from torch._dynamo.exc import TorchDynamoException

log = logging.getLogger("streamcache")

_VARIANTS = 8  # of a block: sizes of batches and buckets until one is compiled for any size


class Compiler:
    """Compiles forwards at their first call. After the first failure all run uncompiled, and the log says why."""

    def __init__(self, forwards: int, backend: str = "inductor") -> None:
        self.failed = False
        self._backend = backend
        # All blocks of a kind are one piece of code for torch, which stops compiling it after a few variants.
        self.limits = dynamo.patch(
            recompile_limit=_VARIANTS * forwards, accumulated_recompile_limit=_VARIANTS * forwards * 2
        )

    def compiled(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        fast = torch.compile(forward, backend=self._backend)

        @wraps(forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.failed or not torch.is_grad_enabled():  # sample images need another form, for a few calls
                return forward(*args, **kwargs)
            try:
                return fast(*args, **kwargs)
            except TorchDynamoException as error:
                result = forward(*args, **kwargs)  # raises if the model itself fails
                self.failed = True
                log.warning("compile: goes on without, because it failed: %s", _first_line(error))
                return result

        return call


def _first_line(error: Exception) -> str:
    error = getattr(error, "inner_exception", error)  # what the compiler itself said
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
