"""Stand-ins for ComfyUI's CLIP and VAE that load their files when they are used and free them afterwards.

Each is a `comfy.sd.CLIP` or `comfy.sd.VAE` by type, so any node accepts it. Attributes that other nodes set on it
survive reloads. If another node modifies the loaded model in a way that cannot be replayed, the model stays loaded.
"""

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import comfy.sd
from comfy_execution.utils import get_executing_context

from ....dataset_cache import OnDemand, digest_of
from .identity import clip_with_settings, describe_patch, patches_of, with_patches

LINGER_SECONDS = 2.0  # between two calls of one workflow, such as tokenizing and encoding


class Lingering:
    """A model on demand, shared by a stand-in and its copies. It stays loaded for a moment after each call."""

    def __init__(self, load: Callable[[], Any], identity: Callable[[], str], name: str, weights: str = "") -> None:
        self.model = OnDemand(load, identity, name)
        self.weights = weights  # display name
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inside = threading.local()
        self._lock = threading.RLock()
        self._extra: contextlib.ExitStack | None = None
        self._until = 0.0
        self._active = 0  # calls and phases of all threads

    @contextlib.contextmanager
    def call(self) -> Iterator[Any]:
        """The model for one call; it stays loaded for a moment afterwards."""
        with self.model.lease() as real, self._count():
            yield real
            self._linger()

    @contextlib.contextmanager
    def phase(self) -> Iterator[Any]:
        """The model for many calls; freed at the end unless another thread is using it."""
        with self.model.lease() as real:
            try:
                with self._count():
                    yield real
            finally:
                # Before the lease ends, so that no reference is left when the memory is freed.
                del real
                self.let_go()

    @property
    def wanted(self) -> bool:
        """Whether a node or one of our calls is running in this thread.

        Between nodes, ComfyUI's executor inspects models to track them. That must not load one.
        """
        return getattr(self._inside, "depth", 0) > 0 or get_executing_context() is not None

    @contextlib.contextmanager
    def _count(self) -> Iterator[None]:
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        with self._lock:
            self._active += 1
        try:
            yield
        finally:
            self._inside.depth -= 1
            with self._lock:
                self._active -= 1

    def let_go(self) -> None:
        """Free the model, or after the last running call if there is one."""
        with self._lock:  # until the end: a call that starts now would get the model that is being dropped
            if self._active:
                return
            extra, self._extra = self._extra, None
            for user in list(self.users):
                user.drop()
            if extra is not None:
                extra.close()

    def _linger(self) -> None:
        with self._lock:
            self._until = time.monotonic() + LINGER_SECONDS
            if self._extra is None:
                self._extra = contextlib.ExitStack()
                self._extra.enter_context(self.model.lease())
                self._start_timer(self._extra, LINGER_SECONDS)

    def _start_timer(self, extra: contextlib.ExitStack, seconds: float) -> None:
        timer = threading.Timer(seconds, self._tick, [extra])
        timer.daemon = True
        timer.start()

    def _tick(self, extra: contextlib.ExitStack) -> None:
        with self._lock:
            left = self._until - time.monotonic()
            if self._extra is not extra:  # freed before, and perhaps loaded again
                return
            if self._active or left > 0:
                self._start_timer(extra, left if left > 0 else LINGER_SECONDS)
            else:
                self.let_go()


class _StandIn:
    """Common part of both stand-ins. `_shared` is the one model behind all copies."""

    _shared: Lingering
    _pinned: contextlib.ExitStack | None = None

    @property
    def loads(self) -> int:
        return self._shared.model.loads

    @property
    def weights(self) -> str:
        return self._shared.weights

    @property
    def loaded(self) -> bool:
        return self._shared.model.loaded

    def lease(self) -> contextlib.AbstractContextManager:
        """Keeps the model loaded for a phase of work and frees it afterwards."""
        return self._shared.phase()

    def pin(self) -> None:
        """Keep the model loaded for as long as this stand-in lives."""
        if self._pinned is None:
            stack = contextlib.ExitStack()
            stack.enter_context(self._shared.model.lease())
            self.__dict__["_pinned"] = stack
            weakref.finalize(self, stack.close)

    def drop(self) -> None:
        """Drop all references to the loaded model."""

    def is_dynamic(self: Any) -> bool:
        return self._shared.wanted and self.patcher.is_dynamic()

    def _require_use(self, name: str) -> None:
        if not self._shared.wanted:
            raise AttributeError(f"{name}: a model on demand has this attribute only while a node uses it")

    def __copy__(self) -> Any:
        twin = type(self).__new__(type(self))
        twin.__dict__.update({name: value for name, value in self.__dict__.items() if name != "_pinned"})
        self._shared.users.add(twin)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()


def _lend(base: type, own: set[str]) -> Callable[[type], type]:
    """Give a stand-in all methods of `base` except its `own`; the model stays loaded while one runs."""

    def wrap(method: Callable) -> Callable:
        @functools.wraps(method)
        def held(self: _StandIn, *args: Any, **kwargs: Any) -> Any:
            with self._shared.call():
                return method(self, *args, **kwargs)

        return held

    def decorate(cls: type) -> type:
        for name, method in vars(base).items():
            if callable(method) and not name.startswith("__") and name not in own and name not in vars(cls):
                setattr(cls, name, wrap(method))
        return cls

    return decorate


@_lend(comfy.sd.CLIP, own={"clip_layer", "set_tokenizer_option", "add_hooks_to_dict", "is_dynamic"})
class OnDemandClip(_StandIn, comfy.sd.CLIP):
    """A CLIP that is loaded to tokenize or encode. Clip-skip, tokenizer options and patches belong to the stand-in."""

    def __init__(self, shared: Lingering) -> None:
        comfy.sd.CLIP.__init__(self, no_init=True)
        self._shared = shared
        self._patches: tuple[tuple[dict, float, float], ...] = ()
        self._patcher: Any = None
        self._patched = ""
        self.layer_idx, self.tokenizer_options = None, {}
        self.use_clip_schedule, self.apply_hooks_to_conds = False, None
        shared.users.add(self)

    @property
    def identity(self) -> str:
        """Never loads the model."""
        if self._pinned is not None:
            return digest_of([self._shared.model.identity, str(self._patcher.patches_uuid)])
        patches = [describe_patch(list(patch)) for patch in self._patches]
        return clip_with_settings(with_patches(self._shared.model.identity, patches), self)

    @property
    def patcher(self) -> Any:
        self._require_use("patcher")
        if self._patcher is None:
            with self._shared.call() as real:
                patcher = real.patcher.clone()
                for patch in self._patches:
                    patcher.add_patches(*patch)
            self._patcher, self._patched = patcher, patcher.patches_uuid
        return self._patcher

    @patcher.setter
    def patcher(self, patcher: Any) -> None:
        self.pin()
        self._patcher = patcher

    @property
    def cond_stage_model(self) -> Any:
        return self.patcher.model

    @property
    def tokenizer(self) -> Any:
        with self._shared.call() as real:
            return real.tokenizer

    def clone(self, disable_dynamic: bool = False) -> "OnDemandClip":
        twin = self.__copy__()
        twin.tokenizer_options = self.tokenizer_options.copy()
        if self._pinned is not None:
            twin.patcher = self.patcher.clone(disable_dynamic=disable_dynamic)
        else:
            twin._patcher = None
        return twin

    def add_patches(self, patches: dict, strength_patch: float = 1.0, strength_model: float = 1.0) -> list:
        with self._shared.call():
            taken = self.patcher.add_patches(patches, strength_patch, strength_model)
            self._patches = (*self._patches, (patches, strength_patch, strength_model))
            self._patched = self.patcher.patches_uuid
            return taken

    def drop(self) -> None:
        patcher = self._patcher
        if patcher is None or self._pinned is not None:
            return
        if patcher.patches_uuid != self._patched or patcher.forced_hooks is not None or patcher.hook_patches:
            self.pin()  # modified in a way that cannot be replayed
        else:
            self._patcher = None


@_lend(comfy.sd.VAE, own={"throw_exception_if_invalid", "is_dynamic"})
class OnDemandVae(_StandIn, comfy.sd.VAE):
    """A VAE that is loaded to encode or decode. Its attributes come from the loaded VAE."""

    def __init__(self, shared: Lingering) -> None:
        self._shared = shared
        shared.users.add(self)

    @property
    def identity(self) -> str:
        """Never loads the model."""
        base = self._shared.model.identity
        return with_patches(base, patches_of(self.patcher)) if "patcher" in self.__dict__ else base

    def throw_exception_if_invalid(self) -> None:
        """The loader raises if a file contains no VAE."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_shared" not in self.__dict__:  # copying asks before `__init__`
            raise AttributeError(name)
        self._require_use(name)
        with self._shared.call() as real:
            return getattr(real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("patcher", "first_stage_model"):
            self.pin()
        super().__setattr__(name, value)
