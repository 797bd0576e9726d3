"""Pieces as local copies: whole or missing, shared by processes, and never in the way."""

import os
import time
from pathlib import Path

import pytest

from streamcache.dataset_cache.ahead import pieces
from streamcache.dataset_cache.ahead.pieces import CLAIM_SECONDS, READERS, Piece, PieceFolder, PieceMemory
from streamcache.dataset_cache.format import LocalStorage

from ...support.datasets import flip

SHARD = "0123456789abcdef" * 2
ONE, OTHER = Piece(SHARD, 4096, 5), Piece(SHARD, 1 << 30, 6)


@pytest.fixture
def store(tmp_path: Path) -> PieceFolder:
    return PieceFolder(tmp_path / "blocks")


def data(piece: Piece) -> memoryview:
    return memoryview(bytes(range(piece.size)))


def look_now(store: PieceFolder) -> int:
    store._looked -= pieces._LOOK_SECONDS + 1
    return store.others()


@pytest.mark.parametrize("make", [lambda path: PieceFolder(path / "blocks"), lambda path: PieceMemory()])
def test_f5_a_piece_is_read_as_it_was_written(make, tmp_path) -> None:
    store = make(tmp_path)
    assert store.read(ONE) is None and not store.has(ONE)
    store.write(ONE, data(ONE))
    store.claim(ONE)
    store.release(ONE)
    assert store.has(ONE) and bytes(store.read(ONE)) == bytes(range(5)) and store.read(OTHER) is None
    assert store.remove(ONE) and store.read(ONE) is None and store.others() == 0
    store.close()


def test_f5_pieces_are_found_by_listing(store, platform) -> None:
    for piece in (ONE, OTHER):
        store.write(piece, data(piece))
    (store.path / SHARD / "notes.txt").write_text("not a piece")
    (store.path / "another folder").mkdir()
    assert set(store.pieces()) == {ONE, OTHER}


def test_f5_the_folder_of_a_shard_goes_when_nothing_is_in_it(store) -> None:
    store.write(ONE, data(ONE))
    assert set(store.pieces()) == {ONE} and (store.path / SHARD).is_dir()
    store.remove(ONE)
    assert list(store.pieces()) == [] and not (store.path / SHARD).exists()


def test_f5_a_piece_is_written_although_another_process_has_just_removed_its_folder(store, monkeypatch) -> None:
    made, real = [], LocalStorage.make_folder

    def make_folder(self: LocalStorage, name: str) -> None:
        real(self, name)
        made.append(name)
        if len(made) == 1:
            (self.path / name).rmdir()

    monkeypatch.setattr(LocalStorage, "make_folder", make_folder)
    store.write(ONE, data(ONE))
    assert bytes(store.read(ONE)) == bytes(data(ONE)) and len(made) == 2


@pytest.mark.parametrize("change", [
    lambda file: flip(file, 0), lambda file: flip(file, 10), lambda file: os.truncate(file, 3),
    lambda file: file.write_bytes(b""), lambda file: file.write_bytes(bytes(21)),
])  # fmt: skip
def test_f5_a_damaged_piece_is_missing_and_removed(change, store) -> None:
    store.write(ONE, data(ONE))
    change(store.path / ONE.name)
    assert store.read(ONE) is None and not store.has(ONE)


def test_f5_a_file_under_the_name_of_another_piece_is_missing(store) -> None:
    store.write(ONE, data(ONE))
    moved = Piece(SHARD, 8192, 5)
    os.rename(store.path / ONE.name, store.path / moved.name)
    assert store.read(moved) is None


def test_f5_what_a_killed_process_was_writing_is_removed_and_not_what_a_living_one_writes(store) -> None:
    store.write(ONE, data(ONE))
    dead, own = store.path / SHARD / ".00ff.1", store.path / SHARD / f".{store._token}.7"
    dead.write_bytes(b"half")
    own.write_bytes(b"half")
    assert list(store.pieces()) == [ONE] and not dead.exists() and own.exists()


def test_f5_readers_are_seen_while_they_live(store, tmp_path) -> None:
    assert look_now(store) == 0
    other = PieceFolder(store.path)
    assert look_now(store) == look_now(other) == 1
    other.close()
    assert look_now(store) == 0
    (store.path / READERS / "left").write_bytes(b"")  # of a killed one
    assert look_now(store) == 0 and not (store.path / READERS / "left").exists()


def test_f5_a_piece_that_another_reader_needs_is_not_removed(store) -> None:
    store.write(ONE, data(ONE))
    other = PieceFolder(store.path)
    assert look_now(other) == 1 and not other.remove(ONE)
    store.release(ONE)
    assert other.remove(ONE)
    store.write(ONE, data(ONE))
    os.utime(store.path / ONE.name, (1, 1))
    store.claim(ONE)
    assert not other.remove(ONE) and (store.path / ONE.name).stat().st_mtime > time.time() + CLAIM_SECONDS / 2
    store.close()  # the one that needed it has ended
    assert look_now(other) == 0 and other.remove(ONE)


def test_f5_pieces_are_sorted_by_their_last_use(store) -> None:
    for piece, when in ((ONE, 20), (OTHER, 10)):
        store.write(piece, data(piece))
        os.utime(store.path / piece.name, (when, when))
    gone = Piece(SHARD, 0, 1)
    assert store.oldest_first([ONE, gone, OTHER]) == [gone, OTHER, ONE]


def test_f5_a_link_in_the_place_of_a_piece_is_not_followed(store, tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"12345" + bytes(16))
    store.write(OTHER, data(OTHER))
    (store.path / ONE.name).symlink_to(secret)
    assert store.read(ONE) is None and secret.exists()
    store.write(ONE, data(ONE))
    assert bytes(store.read(ONE)) == bytes(range(5)) and secret.read_bytes() == b"12345" + bytes(16)
