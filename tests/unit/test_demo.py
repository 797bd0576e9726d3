"""The demo runs through and leaves what it says."""

from pathlib import Path

import pytest

from streamcache.cli import demo
from streamcache.dataset_cache import open_cache


def test_the_demo_runs_through(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert demo.main(["--out", str(tmp_path / "demo")]) == 0
    told = capsys.readouterr().out
    assert "every byte is as it was written" in told
    assert [line.split()[0] for line in told.splitlines()[-2:]] == ["Done", "Left"]
    assert len(open_cache(tmp_path / "demo" / "cache")) == len(list((tmp_path / "demo" / "pictures").iterdir()))


def test_the_demo_can_run_again_over_its_own_output(tmp_path: Path):
    assert [demo.main(["--out", str(tmp_path / "demo")]) for _ in range(2)] == [0, 0]


def test_captions_that_repeat_are_stored_once(tmp_path: Path):
    demo.main(["--out", str(tmp_path / "demo")])
    cache = open_cache(tmp_path / "demo" / "cache")
    assert len({cache.captions(i)[0] for i in range(len(cache))}) == 8
