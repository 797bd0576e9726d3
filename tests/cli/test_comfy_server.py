"""A workflow on a ComfyUI server is followed to its end, whatever becomes of the connection and of the queue."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from streamcache.cli import comfy_server
from streamcache.cli.comfy_server import ComfyServer, Event
from streamcache.dataset_cache import CacheError

ID = "p1"
DONE = {ID: {"status": {"messages": [["execution_success", {}]]}, "outputs": {"3": {"text": ["made"]}}}}
RUNNING = {"queue_running": [[0, ID, {}]], "queue_pending": []}
EMPTY = {"queue_running": [], "queue_pending": []}


def message(kind: str, **data: Any) -> str:
    return json.dumps({"type": kind, "data": {"prompt_id": ID, **data}})


class Server(ComfyServer):
    """Each connection gives its messages, raising those that are errors; histories and queues are asked in order."""

    def __init__(self, connections: list[list], histories: list[dict], queues: list[dict]) -> None:
        super().__init__("http://nowhere")
        self.connections, self.histories, self.queues = connections, histories, queues
        self.closed = 0

    def _listen(self) -> AbstractContextManager:
        messages = self.connections.pop(0)
        if messages == ["no answer"]:
            raise CacheError("does not answer")
        return self._connection(messages)

    @contextmanager
    def _connection(self, messages: list) -> Iterator[Iterator]:
        yield Messages(messages)
        self.closed += 1

    def _request(self, path: str, data: Any = None) -> Any:
        if path == "/prompt":
            return {"prompt_id": ID}
        answers = self.histories if path.startswith("/history") else self.queues
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Messages:
    def __init__(self, messages: list) -> None:
        self.messages = messages

    def __next__(self) -> str:
        if not self.messages:
            raise StopIteration
        found = self.messages.pop(0)
        if isinstance(found, type):
            raise found
        return found


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only in sleeps, of which there are no more than a long training needs."""
    slept = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(slept[-1] + seconds)
        assert len(slept) < 50_000, "it waits for ever"

    monkeypatch.setattr(comfy_server.time, "sleep", sleep)
    monkeypatch.setattr(comfy_server.time, "monotonic", lambda: slept[-1])
    return slept


def test_after_a_dropped_connection_the_next_one_is_listened_to():
    first = [message("executing", node="1"), ConnectionError]
    second = [message("progress", node="1", value=3, max=9), TimeoutError, message("execution_success")]
    server = Server([first, ["no answer"], second], [{}, {}, {}, DONE], [RUNNING])
    told: list[Event] = []
    outcome = server.run({}, told.append)
    assert [event.kind for event in told] == ["node", "progress"]
    assert outcome.status == "done" and outcome.outputs == DONE[ID]["outputs"] and server.closed == 2


def test_a_training_of_hours_is_waited_for(clock: list[float]):
    server = Server([[message("execution_success")]], [{}] * 30_000 + [DONE], [RUNNING])
    assert server.run({}).status == "done" and clock[-1] > 600


def test_a_connection_that_is_lost_again_and_again_ends_nothing():
    server = Server([[OSError] for _ in range(700)] + [[message("execution_success")]], [{}] * 701 + [DONE], [RUNNING])
    assert server.run({}).status == "done"


def test_a_server_that_stays_away_is_said():
    server = Server([[ConnectionError]] + [["no answer"]] * 100, [{}], [RUNNING])
    with pytest.raises(CacheError, match="does not answer"):
        server.run({})


@pytest.mark.parametrize("messages", [[TimeoutError] * 3, [ConnectionError]])
def test_a_workflow_that_somebody_removed_is_said_to_be(messages: list):
    outcome = Server([messages, [TimeoutError]], [{}], [RUNNING, EMPTY]).run({})
    assert outcome.status == "removed" and "queue" in outcome.error


def test_one_that_ends_between_two_questions_is_not_taken_for_removed():
    assert Server([[TimeoutError]], [{}, DONE], [EMPTY]).run({}).status == "done"


def test_an_end_that_was_heard_counts_where_the_history_is_cleared():
    error = message("execution_error", node_id="7", exception_message="no memory")
    outcome = Server([[error]], [{}], [RUNNING, EMPTY]).run({})
    assert (outcome.status, outcome.node, outcome.error) == ("failed", "7", "no memory")
