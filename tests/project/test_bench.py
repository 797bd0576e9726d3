"""The benchmarks: they run, refuse a wrong reader, and report which targets are met."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from streamcache.bench.__main__ import GROUPS
from streamcache.bench.examples import CONDITIONING_BYTES, LATENT_BYTES, make_example, make_examples
from streamcache.bench.opening import enlarge
from streamcache.bench.peers import PEERS, Loaded
from streamcache.bench.reading import check, write_cache
from streamcache.bench.rounds import Times, take_turns
from streamcache.bench.table import Figure, print_table
from streamcache.dataset_cache import Cache, open_cache


def installed() -> bool:
    """Whether a child process can import the package."""
    try:
        importlib.metadata.version("streamcache")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not installed(), reason="the package is not installed here; `python dev.py test` installs it")
@pytest.mark.parametrize("group", [name for name in GROUPS if name != "host"])  # core's trainer takes minutes
def test_a_quick_run_measures(group: str, tmp_path: Path):
    kept = tmp_path / "figures.json"
    command = [sys.executable, "-m", "streamcache.bench", "--quick", "--only", group, "--json", str(kept)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    figures = json.loads(kept.read_text("utf-8"))["figures"]
    assert f"Measuring {group} …" in run.stderr
    assert figures
    assert all(figure["name"] in run.stdout for figure in figures)


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_returns_what_was_written(name: str, tmp_path: Path):
    PEERS[name].write(tmp_path, make_examples(5))
    check({name: PEERS[name].open(tmp_path)}, 5)


def test_a_wrong_reader_is_refused():
    def read(indices: list[int]) -> Loaded:
        wrong = [make_example(0) for _ in indices]
        return Loaded(torch.cat([e.latent for e in wrong]), [e.conditioning for e in wrong])

    with pytest.raises(AssertionError, match="mine"):
        check({"mine": read}, 5)


def test_an_enlarged_index_opens_as_a_cache(tmp_path: Path):
    write_cache(tmp_path / "set", 3)
    enlarge(tmp_path / "set", 4)
    cache = open_cache(tmp_path / "set", check=False)
    assert len(cache) == 12
    assert all(same_latent(cache, i, i % 3) for i in range(12))


def same_latent(cache: Cache, i: int, number: int) -> bool:
    return torch.equal(cache.read_batch([i]).latents, make_example(number).latent)


def test_an_example_depends_only_on_its_number_and_can_share_a_caption():
    first, again, other = make_example(3, captions=2), make_example(3, captions=2), make_example(5, captions=2)
    assert torch.equal(first.latent, again.latent)
    assert torch.equal(first.text, other.text)
    assert not torch.equal(first.latent, other.latent)
    assert (first.latent.nbytes, first.text.nbytes + first.pooled.nbytes) == (LATENT_BYTES, CONDITIONING_BYTES)


def test_contestants_take_turns_and_the_first_round_does_not_count():
    calls = []
    contestants = {name: lambda item, name=name: calls.append((name, item)) for name in "ab"}
    times = take_turns(contestants, [[n] for n in range(6)])
    assert len(times.by_name["a"]) == len(times.by_name["b"]) == 5
    assert calls[:4] == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_a_ratio_compares_within_rounds():
    assert Times({"a": [1.0, 20.0, 3.0], "b": [2.0, 40.0, 6.0]}).ratio("a", to="b") == 0.5


def test_the_table_reports_which_targets_are_met(capsys: pytest.CaptureFixture):
    figures = [
        Figure("Reading", "fast", 1.05, "×", 1.12),
        Figure("Reading", "slow", 1.30, "×", 1.12),
        Figure("Reading", "ahead", 20.0, "×", 15.0, more_is_better=True),
        Figure("Reading", "peer", 3.0, "×"),
    ]
    print_table(figures)
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert "NOT MET" in rows["slow"]
    assert all(" met" in rows[name] and "NOT" not in rows[name] for name in ("fast", "ahead"))
    assert "met" not in rows["peer"]
