"""Prefetching: batches come early, in order and whole; errors in their turn; nothing is left behind."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from streamcache.dataset_cache import Batch, Plan, map_tensors
from streamcache.errors import TrainError
from streamcache.lora_train.data import prefetch
from streamcache.lora_train.data.order import BatchPlan
from streamcache.lora_train.data.prefetch import HINT_AHEAD, Prefetcher, Uploader


@dataclass
class Rows:
    """A dataset in memory whose sample i is a latent full of i; it reads into the buffers it handed out."""

    encoded: ClassVar[bool] = True
    delay: float = 0.0
    fails_at: int | None = None
    log: list = field(default_factory=list)
    hints: list = field(default_factory=list)
    slots: list = field(default_factory=list)

    def buffers(self, rows: int, pin: bool = False) -> torch.Tensor:
        self.slots.append(torch.zeros(rows, 2, 3, 3))
        return self.slots[-1]

    def will_need(self, indices, variants=None) -> None:
        self.hints.extend(indices)

    def read_batch(self, indices, variants=None, buffers=None) -> Batch:
        self.log.append(("load", indices[0]))
        if self.fails_at is not None and indices[0] >= self.fails_at:
            raise OSError(f"sample {indices[0]} cannot be read")
        time.sleep(self.delay)
        latents = buffers[: len(indices)]
        for row, index in enumerate(indices):
            latents[row] = index
        words = [[torch.full((1, 2), float(index)), {"pooled_output": torch.ones(1)}] for index in indices]
        return Batch(list(indices), latents, {"conditioning": words}, lambda: [str(index) for index in indices])


def make_plans(count: int, size: int = 2) -> list[BatchPlan]:
    return [BatchPlan(n, 0, list(range(n * size, n * size + size)), {}, size) for n in range(count)]


def until(condition: Callable[[], bool]) -> bool:
    """Wait for the loader's thread; a minute only stops a hang."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return condition()


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "streamcache-prefetch"]


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_batches_are_complete_and_in_order_at_every_depth(depth: int) -> None:
    with Prefetcher(Rows(delay=0.001), make_plans(30), 2, depth) as loader:
        number = -1
        for number, loaded in enumerate(loader):
            time.sleep(0.0005)
            assert loaded.plan.number == number
            assert loaded.batch.latents[:, 0, 0, 0].tolist() == loaded.batch.indices == [2 * number, 2 * number + 1]
    assert number == 29


def test_b1_the_next_batch_loads_while_the_current_one_trains() -> None:
    data = Rows()
    with Prefetcher(data, make_plans(6), 2, depth=1) as loader:
        for number, _ in enumerate(loader):
            assert until(lambda number=number: len(data.log) >= min(number + 2, 6))  # it trains, and the next one loads


def test_b1_depth_limits_how_many_batches_are_read_ahead() -> None:
    data = Rows()
    with Prefetcher(data, make_plans(50), 2, depth=3) as loader:
        next(loader)
        assert until(lambda: len(data.log) >= 4)
        time.sleep(0.05)
        assert len(data.log) == 4 and len(data.slots) == 4


def test_b3_a_loader_error_is_raised_in_order_as_the_original_exception() -> None:
    good = []
    with Prefetcher(Rows(fails_at=4), make_plans(9), 2, depth=4) as loader:
        with pytest.raises(OSError, match="sample 4 cannot be read"):
            for loaded in loader:
                time.sleep(0.02)
                good.append(loaded.plan.number)
        with pytest.raises(OSError, match="sample 4"):
            next(loader)
    assert good == [0, 1]
    assert not prefetch_threads()


@pytest.mark.parametrize("leave", [None, ValueError, KeyboardInterrupt])
def test_b4_early_exit_joins_the_thread(leave: type[BaseException] | None) -> None:
    def run() -> None:
        with Prefetcher(Rows(delay=0.005), make_plans(1000), 2, depth=2) as loader:
            for loaded in loader:
                if loaded.plan.number == 3:
                    if leave is not None:
                        raise leave
                    break

    if leave is None:
        run()
    else:
        with pytest.raises(leave):
            run()
    assert not prefetch_threads()


def test_b4_an_unused_loader_ends_too() -> None:
    with Prefetcher(Rows(), make_plans(1000), 2, depth=2):
        pass
    assert not prefetch_threads()


def test_b5_batches_read_ahead_do_not_count_as_trained() -> None:
    data = Rows()
    with Prefetcher(data, make_plans(50), 2, depth=8) as loader:
        loaded = [next(loader) for _ in range(3)]
        assert until(lambda: len(data.log) > 3)
        # A step's position is the number of the batch that it was given, so a resumed run repeats what was only read.
        assert loaded[-1].plan.number + 1 == 3 < len(data.log)


def test_b7_a_plan_is_refused_with_the_reason() -> None:
    with pytest.raises(TrainError, match="encoders do not run during training; save it as a cache first"):
        Prefetcher(object.__new__(Plan), make_plans(1), 2)


def test_b8_waiting_for_data_is_measured() -> None:
    with Prefetcher(Rows(delay=0.3), make_plans(4), 2, depth=1) as loader:
        for _ in loader:
            pass
    assert loader.waited > 0.5
    data = Rows()
    with Prefetcher(data, make_plans(6), 2, depth=6) as quick:
        assert until(lambda: len(data.log) == 6)
        for _ in quick:
            time.sleep(0.3)
    assert quick.waited < 1, "training took 1.8 s, but all batches were ready"


def test_hints_run_ahead_of_the_reading() -> None:
    data = Rows()
    with Prefetcher(data, make_plans(40), 2, depth=0) as loader:
        next(loader)
        assert data.hints == list(range(2 * (HINT_AHEAD + 1)))
        assert len(list(loader)) == 39
    assert data.hints == list(range(80))


class Recorder:
    """Stands where torch.cuda would, and writes down what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def Stream(self, device):
        return self

    def stream(self, stream):
        self.calls.append("on own stream")
        return torch.no_grad()

    def current_stream(self, device):
        return self

    def wait_event(self, event) -> None:
        self.calls.append("wait for this copy")

    def Event(self):
        return self

    def record(self, stream) -> None:
        self.calls.append("mark end of copy")

    def synchronize(self) -> None:
        self.calls.append("copy has ended")


def test_b2_uploads_run_on_their_own_stream_and_a_buffer_waits_for_its_copy(monkeypatch) -> None:
    # There is no GPU here: the order of the calls is checked on a recorder, the ring itself by the other tests.
    recorder = Recorder()
    sender = Uploader(torch.device("cuda"), recorder)
    recorded = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **kwargs: self.clone())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: recorded.append(self))
    data = Rows()
    sent = sender.send(data.read_batch([1, 2], buffers=data.buffers(2)))
    assert sender.pins and recorder.calls == ["on own stream", "mark end of copy"]
    received = sender.receive(sent)
    assert recorder.calls[-1] == "wait for this copy"
    assert len(recorded) == 5 and received.batch.latents.data_ptr() != data.slots[0].data_ptr()
    sender.finish(sent)
    assert recorder.calls[-1] == "copy has ended"


class LateStreams(Recorder):
    """A GPU far behind the program: a copy happens when its event is waited for on the host, or at the very end."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def to(self, source: torch.Tensor) -> torch.Tensor:
        self.copies.append((torch.full_like(source, torch.nan), source))
        return self.copies[-1][0]

    def Event(self):
        return LateEvent(self)


class LateEvent:
    """The end of the copies since the last event."""

    def __init__(self, streams: LateStreams) -> None:
        self.copies, streams.copies = streams.copies, []

    def record(self, stream) -> None: ...

    def synchronize(self) -> None:
        for target, source in self.copies:
            target.copy_(source)
        self.copies.clear()


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_b2_a_buffer_is_not_refilled_before_its_copy_has_ended(depth: int, monkeypatch) -> None:
    late, events = LateStreams(), []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **kwargs: late.to(self))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(prefetch, "Uploader", lambda device: Uploader(torch.device("cuda"), late))
    received = []
    with Prefetcher(Rows(), make_plans(20), 2, depth) as loader:
        for loaded in loader:
            received.append((loaded.plan.indices, loaded.batch.latents))
            events.append(loader._held.upload.done)
    for event in events:
        event.synchronize()
    assert len(received) == 20
    for indices, latents in received:
        assert latents.flatten(1).unique(dim=1).squeeze(1).tolist() == indices


def test_b2_on_the_cpu_nothing_is_copied() -> None:
    data = Rows()
    sender = Uploader(torch.device("cpu"))
    batch = data.read_batch([1], buffers=data.buffers(1))
    assert not sender.pins and sender.receive(sender.send(batch)).batch is batch


def test_d5_moving_a_batch_leaves_the_given_structures_alone() -> None:
    shared = [[torch.ones(1, 2), {"pooled_output": torch.ones(1), "steps": (1, 2.5, None)}]]
    moved = map_tensors(shared, lambda tensor: tensor * 3)
    assert moved[0][1]["steps"] == (1, 2.5, None) and isinstance(moved[0][1]["steps"], tuple)
    moved[0][1]["extra"] = 1
    assert torch.equal(shared[0][0], torch.ones(1, 2)) and "extra" not in shared[0][1]
