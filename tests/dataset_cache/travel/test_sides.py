"""Which side has changed: told by the last common generation, which is never guessed."""

from pathlib import Path

from streamcache.dataset_cache import export, open_cache, storage_at
from streamcache.dataset_cache.travel import AHEAD, APART, BEHIND, SAME, pull, push, relation_of
from streamcache.dataset_cache.travel.sides import last_common

from ...support.datasets import write_set


def test_the_side_that_changed_is_the_newer_one(tmp_path: Path):
    near, far = write_set(tmp_path / "near", range(3)), tmp_path / "far"
    assert relation_of(near, far) == AHEAD
    push(near, far)
    assert relation_of(near, far) == SAME
    write_set(near, range(4))
    assert relation_of(near, far) == AHEAD
    write_set(far, range(5))
    assert relation_of(near, far) == APART
    pull(far, tmp_path / "third")
    write_set(far, range(6))
    assert relation_of(tmp_path / "third", far) == BEHIND


def test_a_copy_made_by_other_means_is_not_taken_for_older(tmp_path: Path):
    near, copy = write_set(tmp_path / "near", range(3)), tmp_path / "copy"
    export(near, copy)
    write_set(near, range(4))
    assert relation_of(near, copy) == APART


def test_the_record_is_per_place_names_none_and_survives_damage(tmp_path: Path):
    near, far = write_set(tmp_path / "near", range(3)), tmp_path / "secret place"
    push(near, far)
    pull(near, tmp_path / "third")
    assert last_common(storage_at(near), storage_at(far)) == open_cache(far).generation
    assert last_common(storage_at(near), storage_at(tmp_path / "third")) is None
    (record,) = [file for file in (near / ".travel").iterdir() if file.suffix == ".json"]
    assert "secret" not in record.name + record.read_text()
    for damage in ("", "[", "[]", '{"generation": 5}', '{"generation": "x"}'):
        record.write_text(damage)
        assert last_common(storage_at(near), storage_at(far)) is None
