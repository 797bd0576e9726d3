"""A job's file: it comes back as it was, and what is not a job is refused."""

import json
from dataclasses import replace

import pytest

from streamcache.errors import TrainError
from streamcache.lora_train.queue.job import DONE, VERSION, Job, read_job, write_job

JOB = Job("ünï", "/out/ünï.safetensors", "/out/runs", "/home", ("--dataset=set",), {"rank": 8, "betas": None})


def test_a_job_comes_back_as_it_was() -> None:
    for job in (JOB, replace(JOB, status=DONE, starts=2, step=30, result={"step": 40}, problem='a "b"')):
        assert read_job(write_job(job), "x") == job
    assert json.loads(write_job(JOB))["version"] == VERSION


def test_fields_of_a_later_version_with_the_same_format_are_ignored() -> None:
    assert read_job(json.dumps({**json.loads(write_job(JOB)), "color": "red"}).encode(), "x") == JOB


def test_a_job_of_a_later_format_names_both_versions() -> None:
    content = json.dumps({**json.loads(write_job(JOB)), "version": VERSION + 1}).encode()
    with pytest.raises(TrainError, match=rf"x: is a job of format {VERSION + 1}, this version reads {VERSION}"):
        read_job(content, "x")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0}, {"version": None}, {"status": "lost"}, {"arguments": None}, {"arguments": [1]}, {"name": 3},
        {"settings": 4}, {"starts": "1"}, {"started": "now"},
    ],
)  # fmt: skip
def test_what_is_not_a_job_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(TrainError, match="x: is not a job; remove it and add the training again"):
        read_job(json.dumps({**json.loads(write_job(JOB)), **change}).encode(), "x")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"3"])
def test_damaged_files_are_refused(content: bytes) -> None:
    with pytest.raises(TrainError, match="x: is not a job"):
        read_job(content, "x")
