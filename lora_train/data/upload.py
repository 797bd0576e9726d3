"""Uploads: a batch from pinned memory to the device on a stream of its own, beside the step that computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...dataset_cache import Batch


@dataclass(frozen=True)
class Upload:
    """A batch and what was drawn for it, on their way. `done` is None where nothing had to be copied."""

    batch: Batch
    drawn: tuple[Tensor, ...] = ()
    done: Any = None

    def tensors(self) -> list[Tensor]:
        """Every tensor that was copied."""
        found = list(self.drawn)
        map_batch(self.batch, lambda tensor: found.append(tensor) or tensor)
        return found


class Uploader:
    """Sends batches to a device. Without CUDA there is nothing to copy, and every method passes the batch on."""

    def __init__(self, device: torch.device, streams: Any = torch.cuda) -> None:
        self.device = device
        self.streams = streams
        self.own = streams.Stream(device) if device.type == "cuda" else None

    @property
    def pins(self) -> bool:
        """Whether buffers are worth pinning: only then does a copy run beside other work."""
        return self.own is not None

    def send(self, batch: Batch, drawn: tuple[Tensor, ...] = ()) -> Upload:
        """Start the copy; the pinned source must stay as it is until `finish`."""
        if self.own is None:
            return Upload(batch, drawn)
        with self.streams.stream(self.own):
            sent = map_batch(batch, self._copy)
            drawn = tuple(self._copy(tensor) for tensor in drawn)
            done = self.streams.Event()
            done.record(self.own)
        return Upload(sent, drawn, done)

    def receive(self, upload: Upload) -> Upload:
        """The same, safe to use on the current stream."""
        if self.own is not None:
            current = self.streams.current_stream(self.device)
            # As wait_stream, but for this copy alone: those of later batches may be under way already.
            current.wait_event(upload.done)
            # The copies were allocated on the other stream: without this their memory could be reused while in use.
            for tensor in upload.tensors():
                tensor.record_stream(current)
        return upload

    def finish(self, upload: Upload | None) -> None:
        """Wait until the source of this upload may be overwritten."""
        if upload is not None and upload.done is not None:
            upload.done.synchronize()

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


def map_batch(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with its tensors changed, in new containers: what was given is never written to.

    The `latent` structures stay as they are: their samples are the rows of `latents`.
    """
    fields = {name: rows if name == "latent" else map_tensors(rows, change) for name, rows in batch.fields.items()}
    return Batch(batch.indices, change(batch.latents), fields, lambda: batch.captions)


def map_tensors(structure: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nesting of lists, tuples and dicts with every tensor changed."""
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, dict):
        return {key: map_tensors(value, change) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)):
        return type(structure)(map_tensors(value, change) for value in structure)
    return structure
