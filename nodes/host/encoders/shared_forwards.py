"""Captions that share forwards: texts of one length go through each network of a CLIP together.

ComfyUI's text encoders differ in how they make a conditioning, but each runs its networks through `encode` of a
`ClipTokenWeightEncoder`. There a caption waits until the others have come as far: it is left by an exception, and
encoded again from the start when its rows are known, with every earlier `encode` answered from memory. So no encoder
family needs code of its own, and one that never calls `encode` runs one caption at a time.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import comfy.model_management as management
import torch
from comfy.sd1_clip import ClipTokenWeightEncoder

Rows = list[list[Any]]  # tokens, as a network gets them
_BATCHES = threading.RLock()  # one batch at a time replaces `encode` of the networks
_SIMPLE = (str, int, float, bool, type(None), list, tuple, torch.device)


def encode_together(clip: Any, tokens: Sequence[Any]) -> list[list]:
    """What CLIP Text Encode returns for each of several tokenized texts, equal within rounding."""
    captions = [_Caption(item) for item in tokens]
    with _BATCHES, _Meeting(clip).open() as meeting:
        while pending := [caption for caption in captions if caption.result is None]:
            for caption in pending:
                if caption.waits_for is None:
                    meeting.advance(caption)
            groups: dict[Any, list[_Caption]] = {}
            for caption in pending:
                if caption.waits_for is not None:
                    groups.setdefault(caption.waits_for, []).append(caption)
            for group in groups.values():
                meeting.advance(group[0], group)
    return [caption.result for caption in captions if caption.result is not None]


@dataclass
class _Answer:
    """What one `encode` returned, and the attributes that it left on the network, which encoders may read."""

    value: Any
    left: dict[str, Any]


@dataclass
class _Caption:
    tokens: Any
    answers: list[_Answer] = field(default_factory=list)  # to its calls of `encode`, in order
    waits_for: Any = None  # captions that wait for the same can share the forward
    rows: Rows = field(default_factory=list)
    result: list | None = None


class _Wait(BaseException):
    """Leaves a caption at a forward that has not run yet. No encoder may catch it."""


class _Meeting:
    """The networks of a CLIP, with `encode` replaced while the meeting is open."""

    def __init__(self, clip: Any) -> None:
        self._clip = clip
        self._thread = threading.get_ident()
        self._caption = _Caption(None)
        self._calls = 0
        self._group: Sequence[_Caption] = ()

    @contextlib.contextmanager
    def open(self) -> Iterator[_Meeting]:
        networks = [module for module in self._clip.cond_stage_model.modules() if _is_network(module)]
        before = [vars(network).get("encode") for network in networks]
        for network in networks:
            network.encode = functools.partial(self._encode, network, network.encode)
        try:
            yield self
        finally:
            for network, own in zip(networks, before):
                del network.encode
                if own is not None:  # another pack's
                    network.encode = own

    def advance(self, caption: _Caption, group: Sequence[_Caption] = ()) -> None:
        """Encode a caption until it is done or waits. With a group, run first what the group waits for."""
        # ComfyUI's own layers notice an interrupt, but not every encoder is made of them.
        management.throw_exception_if_processing_interrupted()
        self._caption, self._group, self._calls = caption, group, 0
        with contextlib.suppress(_Wait):
            caption.result = self._clip.encode_from_tokens_scheduled(_copy(caption.tokens))

    def _encode(self, network: Any, encode: Callable[[Rows], Any], tokens: Rows) -> Any:
        if threading.get_ident() != self._thread:
            return encode(tokens)
        caption, self._calls = self._caption, self._calls + 1
        if self._calls > len(caption.answers):
            if not all(isinstance(token, numbers.Integral) for row in tokens for token in row):
                # Embeddings and images change the length, so this caption runs alone.
                caption.answers.append(_run(network, encode, tokens))
            elif self._group:
                _run_group(network, encode, self._group)
                self._group = ()
            else:
                caption.waits_for = (id(network), self._calls, len(tokens[0]), _state(network))
                caption.rows = tokens
                raise _Wait
        answer = caption.answers[self._calls - 1]
        vars(_module(network)).update(answer.left)
        return _map(torch.clone, answer.value)  # encoders write to what they get


def _is_network(module: torch.nn.Module) -> bool:
    return isinstance(module, ClipTokenWeightEncoder) and hasattr(module, "encode")


def _run_group(network: Any, encode: Callable[[Rows], Any], group: Sequence[_Caption]) -> None:
    answer = _run(network, encode, [row for caption in group for row in caption.rows])
    count, start = sum(len(caption.rows) for caption in group), 0
    for caption in group:
        rows = slice(start, start + len(caption.rows))
        caption.answers.append(_Answer(_map(functools.partial(_take, rows, count), answer.value), answer.left))
        caption.waits_for, start = None, rows.stop


def _run(network: Any, encode: Callable[[Rows], Any], rows: Rows) -> _Answer:
    module = _module(network)
    before = dict(vars(module))
    value = encode(rows)
    return _Answer(value, {name: now for name, now in vars(module).items() if before.get(name, _Answer) is not now})


def _module(network: Any) -> Any:
    return getattr(network, "transformer", network)


def _state(network: Any) -> str:
    """The options of a network, such as clip-skip: captions with other options run separately."""
    return repr(sorted((name, value) for name, value in vars(network).items() if isinstance(value, _SIMPLE)))


def _take(rows: slice, count: int, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.ndim or len(tensor) != count:
        raise ValueError(f"the text encoder returned {tuple(tensor.shape)} for {count} rows of tokens")
    return tensor[rows].clone()  # without a copy, one row would keep the memory of all


def _map(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(change, item) for item in value)
    if isinstance(value, dict):
        return {key: _map(change, item) for key, item in value.items()}
    return value


def _copy(tokens: Any) -> Any:
    """Lists and dicts copied: encoders remove what they have used."""
    if isinstance(tokens, list):
        return [_copy(item) for item in tokens]
    return {key: _copy(item) for key, item in tokens.items()} if isinstance(tokens, dict) else tokens
