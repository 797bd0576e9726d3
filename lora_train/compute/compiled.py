"""`torch.compile` for a model's blocks, one by one; where it fails, training goes on without it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

log = logging.getLogger("streamcache")

VARIANTS = 64  # of a block, if each size of a bucket needs its own


class Compiler:
    """Compiles forwards at their first call. After the first failure no others are tried, and `note` hears why."""

    def __init__(self, note: Callable[[str], None], backend: str | Callable[..., Any] = "inductor") -> None:
        self.failed = False
        self._any_size = True
        self._note, self._backend = note, backend

    @contextmanager
    def limits(self, forwards: int) -> Iterator[None]:
        """Inside the `with`, torch compiles so many forwards, each with its backward pass at once.

        All blocks of a kind are one piece of code for torch, which stops compiling it after a few variants. Compiled
        later, a backward pass that cannot be compiled would end the training.
        """
        from torch._dynamo import config  # takes two seconds; only runs that compile wait for it
        from torch._functorch import config as gradients
        from torch.fx.experimental import _config as sizes

        log.info("Compiling %d blocks; the first step of each size takes minutes", forwards)
        most = VARIANTS * forwards
        with ExitStack() as stack:
            # The names that all versions know; the newest ones call them recompile_limit.
            stack.enter_context(config.patch(cache_size_limit=most, accumulated_cache_size_limit=2 * most))
            if hasattr(sizes, "use_duck_shape"):  # two sizes that are equal in the first batch may differ in the next
                stack.enter_context(sizes.patch(use_duck_shape=False))  # pyright: ignore[reportAttributeAccessIssue]
            if hasattr(gradients, "force_non_lazy_backward_lowering"):
                stack.enter_context(gradients.patch(force_non_lazy_backward_lowering=True))
            yield

    def compiled(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward, compiled for batches and buckets of any size; for each size, where torch cannot do that.

        By default torch compiles for the size that comes first, and a resumed run begins with another one: it would
        round differently.
        """
        from torch._dynamo.exc import TorchDynamoException

        fast: Callable[..., Any] | None = None
        called = any_size = False

        @wraps(forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal fast, called, any_size
            if not torch.is_grad_enabled():  # sample images need another form, for a few calls
                return forward(*args, **kwargs)
            # What worked stays: with checkpointing, the second pass through a block must be the same as the first.
            if not called:
                fast, called, any_size = self._compile(forward), True, self._any_size
            while fast is not None:
                try:
                    return fast(*args, **kwargs)
                except TorchDynamoException as error:
                    if any_size:  # some versions of torch cannot compile for any size what they can for one
                        self._any_size = any_size = False
                        fast = self._compile(forward)
                        continue
                    result = forward(*args, **kwargs)  # raises if it is the model that fails
                    fast = self._fail(error)
                    return result
            return forward(*args, **kwargs)

        return call

    def _compile(self, forward: Callable[..., Any]) -> Callable[..., Any] | None:
        if self.failed:
            return None
        try:
            return torch.compile(forward, backend=self._backend, dynamic=self._any_size)
        except RuntimeError as error:  # not on this system, or not with this version of Python
            return self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Say why, once."""
        if not self.failed:
            self._note(_failure(error))
        self.failed = True


def _failure(error: Exception) -> str:
    error = getattr(error, "inner_exception", error)  # what the compiler itself said
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
    return f"compile = true: torch.compile failed ({reason}); training goes on without it"
