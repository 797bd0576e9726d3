"""A queue: jobs in order, each claimed by one worker, and files that are whole whatever was killed."""

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from streamcache.dataset_cache.format import locks
from streamcache.errors import TrainError
from streamcache.lora_train.queue import job_queue
from streamcache.lora_train.queue.job import CANCELLED, DONE, FAILED, RUNNING, WAITING, Job
from streamcache.lora_train.queue.job_queue import MOST_STARTS, JobQueue

from ...support.package import run_python


def job(folder: Path, name: str = "a", **settings) -> Job:
    return Job(name, str(folder / f"{name}.safetensors"), str(folder / "runs"), str(folder), (), settings)


@pytest.fixture
def queue(tmp_path: Path) -> JobQueue:
    return JobQueue(tmp_path / "queue")


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.skipif(os.name != "posix", reason="of POSIX"))])
def locking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With file locks, and on a drive without them."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    if not request.param:
        monkeypatch.setattr(locks.fcntl, "flock", flock)


def save_state(folder: Path, name: str, step: int) -> None:
    """The files of a run that has saved a state at this step."""
    (folder / "runs" / name / "states").mkdir(parents=True, exist_ok=True)
    (folder / "runs" / name / "run.json").write_text(json.dumps({"updated": round(time.time(), 1)}))
    (folder / "runs" / name / "states" / f"step-{step:08}.safetensors").write_bytes(b"x")


@pytest.mark.usefixtures("locking")
def test_i5_jobs_are_claimed_in_order_and_by_one_worker_each(queue: JobQueue, tmp_path: Path) -> None:
    assert [queue.add(job(tmp_path, name))[0] for name in "abc"] == [1, 2, 3]
    other = JobQueue(queue.folder)
    with queue.claim() as first, other.claim() as second:
        assert first and second and (first.number, second.number) == (1, 2)
        first.start("w1").end(DONE)
    with queue.claim() as again:
        assert again and again.number == 2 and queue.read(1).status == DONE
    assert not queue.file(1, "lock").exists()


@pytest.mark.usefixtures("locking")
def test_i5_a_job_whose_worker_ended_is_claimed_again_and_starts_are_bounded(queue: JobQueue, tmp_path: Path) -> None:
    queue.add(job(tmp_path))
    for number in range(1, MOST_STARTS + 1):
        with queue.claim() as claim:
            assert claim.start("w").job.starts == number
    save_state(tmp_path, "a", 10)  # progress: it may be started as often again
    with queue.claim() as claim:
        assert claim.begun and claim.start("w").job.starts == 1
    for _ in range(MOST_STARTS - 1):
        with queue.claim() as claim:
            claim.start("w").put_back("it crashed")
    with queue.claim() as claim, pytest.raises(TrainError, match="it crashed; was started 3 times and ended each time"):
        claim.start("w")


def test_starts_that_a_worker_stops_itself_do_not_count(queue: JobQueue, tmp_path: Path) -> None:
    queue.add(job(tmp_path))
    for _ in range(MOST_STARTS + 2):
        with queue.claim() as claim:
            claim.start("w").put_back()
    with queue.claim() as claim:
        assert claim.start("w").job.starts == 1


def test_a_run_from_before_the_job_is_not_its_own(queue: JobQueue, tmp_path: Path) -> None:
    save_state(tmp_path, "a", 10)
    run = tmp_path / "runs/a/run.json"
    run.write_text(json.dumps({"updated": time.time() - 100}))
    queue.add(job(tmp_path, mode="overwrite"))
    with queue.claim() as claim:
        assert not claim.start("w").begun
        save_state(tmp_path, "a", 20)
        assert queue.read(1).step == 0 and replace(claim, job=queue.read(1)).begun


def test_two_jobs_have_two_runs_and_never_one_file(queue: JobQueue, tmp_path: Path) -> None:
    save_state(tmp_path, "a", 10)
    assert queue.add(job(tmp_path))[1].name == "a-2"
    with pytest.raises(TrainError, match=r"a\.safetensors: job 1 writes this file; give another name, or cancel"):
        queue.add(job(tmp_path))
    assert queue.add(replace(job(tmp_path), out=str(tmp_path / "other.safetensors")))[1].name == "a-3"
    resumed = replace(job(tmp_path, "a-2", mode="resume"), out=str(tmp_path / "third.safetensors"))
    with pytest.raises(TrainError, match="another job trains this run; wait for it, or cancel it"):
        queue.add(resumed)


@pytest.mark.usefixtures("locking")
def test_i5_a_waiting_job_is_removed_and_a_running_one_asked_to_stop(queue: JobQueue, tmp_path: Path) -> None:
    for name in "abc":
        queue.add(job(tmp_path, name))
    assert queue.cancel(2) is True and queue.numbers() == [1, 3]
    with queue.claim() as claim:
        assert not claim.cancelled
        assert queue.cancel(1) is False and claim.cancelled
        claim.start("w")  # and this worker dies
    with queue.claim() as claim:
        assert claim.number == 3
    assert queue.read(1).status == CANCELLED and not queue.file(1, "cancel").exists()
    with pytest.raises(TrainError, match=r"job 1 has ended already \(cancelled\)"):
        queue.cancel(1)
    with pytest.raises(TrainError, match="has no job 9; streamcache queue list shows them"):
        queue.cancel(9)


def test_a_job_that_ends_while_it_is_cancelled_stays(queue: JobQueue, tmp_path: Path, monkeypatch) -> None:
    queue.add(job(tmp_path))
    take_lock = job_queue.take_lock

    def take_after_the_end(*place: object):
        monkeypatch.setattr(job_queue, "take_lock", take_lock)
        with queue.claim() as claim:
            claim.start("w").end(DONE)
        return take_lock(*place)

    monkeypatch.setattr(job_queue, "take_lock", take_after_the_end)
    with pytest.raises(TrainError, match=r"job 1 has ended already \(done\)"):
        queue.cancel(1)
    assert queue.read(1).status == DONE and not queue.file(1, "lock").exists()


def test_a_cancelled_job_that_has_started_stays_in_the_list(queue: JobQueue, tmp_path: Path) -> None:
    """Its worker was killed: what it trained is on disk, and the list says where."""
    queue.add(job(tmp_path))
    with queue.claim() as claim:
        claim.start("w")
    assert queue.cancel(1)
    assert queue.read(1).status == CANCELLED and not queue.file(1, "lock").exists()
    with queue.claim() as claim:
        assert claim is None


def test_what_is_no_job_does_not_block_the_queue(queue: JobQueue, tmp_path: Path) -> None:
    queue.add(job(tmp_path))
    queue.add(job(tmp_path, "b"))
    queue.file(1).write_text("{")
    (queue.folder / ".000003.json.77.tmp").write_text("{")  # of a killed process
    (queue.folder / "notes.json").write_text("{}")
    with queue.claim() as claim:
        assert claim.number == 2
        claim.end(FAILED, problem="x")
    with queue.claim() as claim:
        assert claim is None
    with pytest.raises(TrainError, match=r"000001\.json: is not a job"):
        queue.read(1)
    assert queue.add(job(tmp_path, "c"))[0] == 3
    assert JobQueue(tmp_path / "missing").numbers() == []


def claim_all(folder: str, pipe) -> None:
    taken = []
    while True:
        with JobQueue(folder).claim() as claim:
            if claim is None:
                break
            claim = claim.start(str(os.getpid()))
            taken.append(claim.number)
            time.sleep(0.002)
            claim.end(DONE)
    pipe.put(taken)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.usefixtures("locking")
def test_i5_many_workers_at_once_never_take_one_job_twice(queue: JobQueue, tmp_path: Path) -> None:
    for number in range(24):
        queue.add(job(tmp_path, f"j{number}"))
    context = multiprocessing.get_context("fork")
    pipe = context.Queue()
    workers = [context.Process(target=claim_all, args=(str(queue.folder), pipe)) for _ in range(4)]
    for worker in workers:
        worker.start()
    taken = [pipe.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert sorted(number for numbers in taken for number in numbers) == list(range(1, 25))
    assert {queue.read(number).status for number in queue.numbers()} == {DONE}


KILLED = """
import os, signal
from pathlib import Path
from streamcache.lora_train.queue import Job, JobQueue
steps = iter(range(int(sys.argv[2])))
def counted(call):
    def step(*args, **options):
        if next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)
    return step
for name in ("write", "fsync", "replace", "unlink", "mkdir", "open"):
    setattr(os, name, counted(getattr(os, name)))
JobQueue(sys.argv[1]).add(Job("k", sys.argv[1] + "/k", sys.argv[1] + "/runs", "/", (), {}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize("last", range(12))
def test_i5_a_kill_of_the_process_that_adds_leaves_a_whole_job_or_none(
    queue: JobQueue, tmp_path: Path, last: int
) -> None:
    queue.add(job(tmp_path))
    subprocess.run(run_python(KILLED, str(queue.folder), str(last)), timeout=600, check=False)
    assert queue.numbers() in ([1], [1, 2])
    assert all(queue.read(number).status == WAITING for number in queue.numbers())
    number, _ = queue.add(job(tmp_path, "b"))
    assert number == queue.numbers()[-1] and queue.read(number).name == "b"
    with queue.claim() as claim:
        assert claim.number == 1 and claim.start("w").job.status == RUNNING
