"""Fuzzing upkeep: after any change to any file, the result is correct or a CacheError."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, CacheWriter, export, open_cache
from streamcache.dataset_cache.upkeep import clean, compact, merge, repair, verify

from ..support.datasets import content, put_sample, write_set

ROUNDS = 25
ALL = ("debris", "superseded", "unused")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with everything: unused entries, an older generation, an unfinished build, two shards a kind."""
    path = write_set(tmp_path_factory.mktemp("fuzz") / "set", range(4))
    reader = open_cache(path)
    write_set(path, range(3))
    write_set(path, [5], append=True)
    del reader
    writer = CacheWriter(path)
    put_sample(writer, 9)
    writer.flush()
    writer.close()
    return path


def mutate(path: Path, draw: random.Random) -> str:
    files = sorted(f for f in path.rglob("*") if f.is_file() and f.stat().st_size)
    file = draw.choice(files)
    data = bytearray(file.read_bytes())
    kind = draw.choice(["flip", "cut", "zero", "grow", "swap", "remove"])
    at = draw.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "zero":
        data[at : at + 16] = bytes(len(data[at : at + 16]))
    elif kind == "grow":
        data[at:at] = bytes([draw.randrange(256)]) * draw.randrange(1, 100)
    elif kind == "swap":
        data = bytearray(draw.choice(files).read_bytes())
    if kind == "remove":
        file.unlink()
    else:
        file.write_bytes(data)
    return f"{kind} {file.relative_to(path)} at {at}"


def allowed(use: Callable[[], object]) -> object:
    try:
        return use()
    except CacheError as error:
        return error


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_upkeep_of_a_mutated_dataset_ends_with_a_result_or_a_cache_error(original: Path, tmp_path: Path, seed: int):
    draw = random.Random(seed)
    path = Path(shutil.copytree(original, tmp_path / "set"))
    sound = content(original)
    what = mutate(path, draw)
    allowed(lambda: list(verify(path)))
    allowed(lambda: export(path, tmp_path / "exported"))
    if not isinstance(allowed(lambda: merge([path], tmp_path / "merged")), CacheError):
        assert content(tmp_path / "merged") == sound, what
    allowed(draw.choice([lambda: clean(path, ALL), lambda: compact(path)]))
    if not isinstance(allowed(lambda: repair(path, accept_loss=True)), CacheError):
        # A damaged thumbnail goes alone; of everything else, what is left is as it was.
        assert all(sample in sound or "thumbnail 0" not in sample for sample in content(path)), what
        assert not [problem for problem in verify(path) if problem.kind != "debris"], what
