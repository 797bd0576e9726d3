"""A stand-in for a model that is loaded when it is used, and freed when it is no longer in use.

The stand-in stays the same object across reloads. Copies of it share one model.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...errors import CacheError

_FROZEN = "a model loaded on demand is frozen; load it with the usual loader to train it"


class OnDemand:
    """Stands in for the result of `load`. A method call loads the model for that call; `lease` keeps it loaded.

    The model is always frozen and in eval mode; a request to train it is refused.
    """

    training = False

    def __init__(self, load: Callable[[], Any], identity: Callable[[], str] | str, name: str = "model") -> None:
        self._shared = _Shared(load, name)
        self._identity = identity
        self.name = name

    @property
    def identity(self) -> str:
        """Hash of the weights. Reading it does not load them."""
        return self._identity if isinstance(self._identity, str) else self._identity()

    @property
    def loads(self) -> int:
        """Number of times the model was loaded so far."""
        return self._shared.loads

    @property
    def loaded(self) -> bool:
        return self._shared.model is not None

    @property
    def users(self) -> int:
        """Number of leases, with those that wait for the model."""
        return self._shared.users

    @contextlib.contextmanager
    def lease(self) -> Iterator[Any]:
        """The model itself. Threads share one loaded model, which is freed when the last lease ends."""
        model = self._shared.take()
        try:
            yield model
        finally:
            del model
            self._shared.give_back()

    def train(self, mode: bool = True) -> OnDemand:
        if mode:
            raise CacheError(f"{self.name}: {_FROZEN}")
        return self

    def eval(self) -> OnDemand:
        return self

    def requires_grad_(self, requires_grad: bool = True) -> OnDemand:
        return self.train(requires_grad)

    def __copy__(self) -> OnDemand:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDemand:
        return self.__copy__()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.lease() as model:
            return model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look these up on an empty object
            raise AttributeError(name)
        with self.lease() as model:
            value = getattr(model, name)
        if not callable(value) or isinstance(value, (type, torch.nn.Module)):
            return value
        return functools.partial(self._call, name)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        with self.lease() as model:
            return getattr(model, method)(*args, **kwargs)


class _Shared:
    """The model shared by a stand-in and its copies."""

    def __init__(self, load: Callable[[], Any], name: str) -> None:
        self.load, self.name = load, name
        self.model: Any = None
        self.loads = 0
        self.users = 0
        self._counting = threading.Lock()
        self._loading = threading.Lock()

    def take(self) -> Any:
        # Counted before waiting: a faster thread must not free the model that this one waits for.
        with self._counting:
            self.users += 1
        try:
            with self._loading:
                if self.model is None:
                    model = self.load()
                    _freeze(model, self.name)
                    self.model = model
                    self.loads += 1
                return self.model
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        with self._loading:
            with self._counting:
                self.users -= 1
                is_last = not self.users
            # In its own function: a loop variable here would keep the network alive while memory is returned.
            _set_eval(self.model)
            if is_last:
                self.model = None
                return_memory()


def return_memory() -> None:
    """Return freed memory to the system and the device where possible."""
    gc.collect()
    for name in ("cuda", "xpu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            module.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # musl has no malloc_trim
            ctypes.CDLL(None).malloc_trim(0)


def _set_eval(model: Any) -> None:
    for module in _modules(model):
        module.eval()


def _freeze(model: Any, name: str) -> None:
    for module in _modules(model):
        module.requires_grad_(False)
        module.eval()
        module.train = functools.partial(_refuse_training, module, name)


def _refuse_training(module: torch.nn.Module, name: str, mode: bool = True) -> torch.nn.Module:
    if mode:
        raise CacheError(f"{name}: {_FROZEN}")
    return type(module).train(module, False)


def _modules(model: Any) -> list[torch.nn.Module]:
    """The networks of a model object: itself, or those in its attributes, as in ComfyUI's CLIP and VAE."""
    if isinstance(model, torch.nn.Module):
        return [model]
    return [value for value in getattr(model, "__dict__", {}).values() if isinstance(value, torch.nn.Module)]
