"""Files of runs: only regular ones are opened, and what cannot be read now is an error, not a missing file."""

import errno
import os
from pathlib import Path

import pytest

from streamcache.errors import TrainError
from streamcache.lora_train.run.run_files import list_names, may_be_file, open_run_file, read_from, read_run_file

from ...support.odd_files import KINDS, make_unreadable, put_odd, returns

posix = pytest.mark.skipif(os.name != "posix", reason="needs pipes and sockets")


@posix
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_file_counts_as_missing_and_does_not_block(tmp_path: Path, kind: str) -> None:
    put_odd(kind, tmp_path / "run.json")
    assert returns(lambda: read_run_file(tmp_path / "run.json")) is None
    assert not may_be_file(tmp_path / "run.json")
    assert read_run_file(tmp_path / "missing") is None and not may_be_file(tmp_path / "missing")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_what_cannot_be_read_now_is_an_error_with_the_reason(tmp_path: Path, number: int, monkeypatch) -> None:
    (tmp_path / "run.json").write_text("{}")
    make_unreadable(monkeypatch, tmp_path, number)
    for read in (read_run_file, open_run_file):
        with pytest.raises(TrainError, match=rf"run\.json: .*{os.strerror(number)}; try again"):
            read(tmp_path / "run.json")
    with pytest.raises(TrainError, match=os.strerror(number)):
        list_names(tmp_path)


def test_a_file_is_read_from_any_place_and_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    file = open_run_file(tmp_path / "link")
    assert file is not None and (read_from(file), read_from(file, 7), read_from(file, 70)) == (
        b"0123456789",
        b"789",
        b"",
    )
    assert list_names(tmp_path) == ["link", "real"] and list_names(tmp_path / "missing") == []
    with pytest.raises(TrainError, match="real"):
        list_names(tmp_path / "real")
