"""What commands print: progress, byte counts, times."""

import argparse
import io
import sys

import pytest

from streamcache.cli import output
from streamcache.cli.output import Progress


def test_a_progress_bar_is_drawn_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for terminal, asked_json in ((Terminal(), False), (Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress(argparse.Namespace(json=asked_json), "Working") as progress:
            progress(500, 1000)
        drawn = terminal.getvalue()
        assert bool(drawn) == (terminal.isatty() and not asked_json)
        assert "####" in drawn or not drawn


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1 KB"), (1_400_000_000, "1.4 GB"), (999_999, "1 MB")],
)
def test_byte_counts_are_short(count: int, text: str):
    assert output.byte_count(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (114, "1:54"), (3599.6, "1:00:00"), (7380, "2:03:00")])
def test_the_time_left_reads_like_a_clock(seconds: float, text: str):
    assert output.clock(seconds) == text


def test_a_progress_line_ends_between_two_facts():
    parts = ["Training", "[####....] 120 of 1,000", "", "1:54 left", "loss 0.1234", "2.5 steps/s", "data wait 0.3%"]
    whole = "Training  [####....] 120 of 1,000  1:54 left  loss 0.1234  2.5 steps/s  data wait 0.3%"
    assert output.fit(parts, 200) == whole
    for width in range(10, len(whole)):
        line = output.fit(parts, width)
        assert len(line) <= width and whole.startswith(line) and whole[len(line) :].startswith("  ")
