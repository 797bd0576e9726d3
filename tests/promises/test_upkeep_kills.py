"""Upkeep under kill -9: a child cleans, compacts and saves until it is killed; the cache stays intact."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.upkeep import clean, verify

from ..support.datasets import content, write_set

KILLS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 25))]
CHILD = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
import tests.conftest
from pathlib import Path
from tests.support.datasets import write_set
from streamcache.dataset_cache import clean, compact, open_cache
path = Path(sys.argv[1])
print("ready", flush=True)
while True:
    write_set(path, [0, 1, 2, 3, 4])
    write_set(path, [0, 1, 2])
    compact(path)
    clean(path, ["debris", "superseded", "unused"])
"""


@pytest.mark.parametrize("seed", KILLS)
def test_a13_a_kill_during_upkeep_leaves_a_dataset_that_opens(tmp_path: Path, seed: int):
    path = write_set(tmp_path / "set", range(5))
    five = content(path)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(random.Random(seed).uniform(0, 0.4))
    finally:
        child.kill()
        child.wait(60)
    assert content(path) in (five, five[:3])
    assert {problem.kind for problem in verify(path)} <= {"debris"}
    write_set(path, range(5))
    assert content(path) == five
    clean(path, ["debris", "superseded", "unused"])
    assert list(verify(path)) == [] and len(open_cache(path)) == 5
