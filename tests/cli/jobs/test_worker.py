"""`streamcache worker`: jobs are trained in order, once each, and survive a kill of either side."""

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from streamcache.lora_train.queue import JobQueue, hold

from ...support.commands import run
from ...support.trainings import digests, finish, kill, make_parts, random_moment, start, steps_of, training, wait_until

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def add(folder: Path, out: str = "a", steps: int = 20, **settings: object) -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    assert run("queue", "add", "--queue", folder / "queue", *training(folder, f"out/{out}", steps), *flags) == 0


def worker(folder: Path, *arguments: object, **options):
    return start("worker", "--queue", folder / "queue", *arguments, **options)


def statuses(folder: Path) -> list[str]:
    queue = JobQueue(folder / "queue")
    return [queue.read(number).status for number in queue.numbers()]


def run_of(folder: Path, name: str) -> Path:
    return folder / "out" / "runs" / name


def test_i5_jobs_are_trained_in_order_and_a_failed_one_keeps_its_sentence(parts: Path) -> None:
    add(parts, "a")
    add(parts, "b", caption_dropout=0.5)
    add(parts, "c", steps=10, rank=4)
    code, printed, errors = finish(worker(parts, "--once"))
    assert (code, statuses(parts)) == (1, ["done", "failed", "done"]), errors
    assert "3 jobs: 2 done, 1 failed" in printed
    queue = JobQueue(parts / "queue")
    assert "the dataset has no encoded empty caption" in queue.read(2).problem
    assert queue.read(1).result["step"] == 20 and queue.read(1).ended <= queue.read(3).started + 1
    assert sorted(digests(parts / "out")) == ["a.safetensors", "c.safetensors"]
    code, printed, _ = finish(worker(parts, "--once"))
    assert (code, printed) == (0, "0 jobs\n")


def test_a_worker_of_a_folder_that_is_missing_ends_or_says_that_it_made_it(tmp_path: Path, capsys) -> None:
    assert run("worker", "--queue", tmp_path / "typo", "--once") == 1
    assert "typo: no such folder" in capsys.readouterr().err and not (tmp_path / "typo").exists()
    process = worker(tmp_path)
    try:
        greeting = f"Waiting for jobs in {tmp_path / 'queue'}, which was made just now"
        assert process.stderr.readline().rstrip() == greeting
    finally:
        process.kill()
        finish(process)


@posix
def test_i5_a_cancelled_job_stops_and_saves_and_the_next_one_is_trained(parts: Path) -> None:
    add(parts, "a", steps=1_000_000)
    add(parts, "b", steps=10)
    process = worker(parts, "--once")
    wait_until(lambda: steps_of(run_of(parts, "a")))
    assert run("queue", "cancel", 1, "--queue", parts / "queue") == 0
    code, _, errors = finish(process)
    assert (code, statuses(parts)) == (0, ["cancelled", "done"]), errors
    described = json.loads((run_of(parts, "a") / "run.json").read_text())
    assert described["status"] == "stopped" and JobQueue(parts / "queue").read(1).result["step"] == described["step"]


@posix
def test_i5_a_worker_that_is_told_to_end_saves_and_puts_the_job_back(parts: Path) -> None:
    add(parts, "a", steps=400)
    process = worker(parts)
    wait_until(lambda: steps_of(run_of(parts, "a")))
    process.send_signal(signal.SIGTERM)
    code, _, errors = finish(process)
    assert code == 130 and statuses(parts) == ["waiting"] and "goes on with the next worker" in errors
    assert 0 < json.loads((run_of(parts, "a") / "run.json").read_text())["step"] < 400
    code, _, errors = finish(worker(parts, "--once"))
    assert (code, statuses(parts)) == (0, ["done"]) and "Job 1: a goes on" in errors
    assert steps_of(run_of(parts, "a")) == list(range(1, 401))


@posix
def test_i5_a_training_that_crashes_is_started_again_but_not_for_ever(parts: Path) -> None:
    add(parts, "a", steps=1_000_000, save_every=0)
    process, crashes = worker(parts, "--once"), []
    while process.poll() is None and len(crashes) < 9:
        for child in psutil.Process(process.pid).children() if psutil.pid_exists(process.pid) else []:
            if child.pid not in crashes and "--turn" in child.cmdline():
                wait_until(lambda: steps_of(run_of(parts, "a")) or process.poll() is not None)
                child.kill()
                crashes.append(child.pid)
    code, _, _ = finish(process)
    job = JobQueue(parts / "queue").read(1)
    assert (code, job.status, len(crashes)) == (1, "failed", 3)
    assert (
        job.problem.startswith("the training's process was ended by SIGKILL") and "was started 3 times" in job.problem
    )


def test_a_device_has_one_worker_which_is_named(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "my.host")
    with hold(tmp_path / ".worker-my-host-1", "device 1 of my-host"):
        assert run("worker", "--queue", tmp_path, "--device", 1, "--once") == 1
        assert f"has a worker already (device 1 of my-host, process {os.getpid()}, since" in capsys.readouterr().err
        assert run("worker", "--queue", tmp_path, "--device", 2, "--once") == 0


@pytest.mark.parametrize("device", ["foo", "-3", "0 1"])
def test_a_device_that_no_gpu_has_is_refused(tmp_path: Path, capsys, device: str) -> None:
    assert run("worker", "--queue", tmp_path, f"--device={device}", "--once") == 2
    assert f"--device {device}: expected the number of a GPU, such as 0" in capsys.readouterr().err


def test_a_job_whose_folder_is_gone_fails_with_a_sentence(parts: Path, monkeypatch, capsys) -> None:
    (parts / "here").mkdir()
    monkeypatch.chdir(parts / "here")
    add(parts, "a")
    monkeypatch.chdir(parts)
    (parts / "here").rmdir()
    assert run("worker", "--queue", parts / "queue", "--once") == 1
    assert "cannot be entered (No such file or directory); add the job again" in capsys.readouterr().err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The LoRAs of four jobs that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    make_parts(folder)
    for number, out in enumerate("abcd"):
        add(folder, out, steps=200, seed=number)
    code, _, errors = finish(worker(folder, "--once"))
    assert code == 0, errors
    return digests(folder / "out")


@posix
@pytest.mark.slow
@pytest.mark.parametrize("locks", [True, False], ids=["", "without file locks"])
@pytest.mark.parametrize("seed", range(2))
def test_i5_a_queue_whose_workers_are_killed_again_and_again_is_completed(
    parts: Path, undisturbed: dict[str, str], seed: int, locks: bool
) -> None:
    moment, place = random_moment(seed), None if locks else parts / "no_locks"
    for number, out in enumerate("abcd"):
        add(parts, out, steps=200, seed=number)
    for number, out in enumerate("abcd"):
        process = worker(parts, "--once", locks=place)
        wait_until(lambda out=out, process=process: steps_of(run_of(parts, out)) or process.poll() is not None)
        moment(0.6)
        kill(process, whole=bool((number + seed) % 2))
    code, _, errors = finish(worker(parts, "--once", locks=place))
    assert (code, statuses(parts)) == (0, ["done"] * 4), errors
    assert digests(parts / "out") == undisturbed
    assert sorted(path.name for path in (parts / "out/runs").iterdir()) == ["a", "b", "c", "d"]
    assert all(steps_of(run_of(parts, out)) == list(range(1, 201)) for out in "abcd")


@posix
@pytest.mark.slow
@pytest.mark.parametrize("locks", [True, False], ids=["", "without file locks"])
def test_i5_two_workers_share_a_queue_and_never_train_one_job_both(
    parts: Path, undisturbed: dict[str, str], locks: bool
) -> None:
    place = None if locks else parts / "no_locks"
    for number, out in enumerate("abcd"):
        add(parts, out, steps=200, seed=number)
    workers = [worker(parts, "--once", "--device", device, locks=place) for device in (0, 1)]
    ended = [finish(process) for process in workers]
    assert [code for code, _, _ in ended] == [0, 0] and statuses(parts) == ["done"] * 4, ended
    counts = [int(printed.split()[0]) for _, printed, _ in ended]
    assert sum(counts) == 4 and all(counts)
    queue = JobQueue(parts / "queue")
    assert all(queue.read(number).starts == 1 for number in queue.numbers())
    assert digests(parts / "out") == undisturbed
    assert all(steps_of(run_of(parts, out)) == list(range(1, 201)) for out in "abcd")
