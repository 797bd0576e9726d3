"""Renaming, the trash and restoring: a cache in use is not moved, and a refusal changes nothing."""

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format import locks
from streamcache.lora_train import TrainError
from streamcache.lora_train.run import folder as folder_module
from streamcache.lora_train.run.folder import is_run_locked, open_run, read_run_json
from streamcache.nodes.library import open_caches, paths
from streamcache.nodes.library.handles import handle_of
from streamcache.nodes.outside.untrusted import Refused
from streamcache.nodes.server import moves
from streamcache.nodes.server.cache_view import close_views, open_view
from streamcache.nodes.server.live_runs import LiveRuns
from streamcache.nodes.server.moves import (
    CACHE,
    RUN,
    Root,
    list_trash,
    move_to_trash,
    remove_for_good,
    rename,
    restore,
    unused,
)
from streamcache.nodes.server.runs import RunPlaces, Runs

from ...support.datasets import content, write_set
from ...support.samples import write_cache


@pytest.fixture(autouse=True)
def nothing_open():
    yield
    open_caches.close_idle()
    close_views()


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.name.startswith(".lock")}


def delete(root: Root, name: str, folder: Path) -> str:
    return move_to_trash(root, name, folder, lambda: unused(folder))


def make_runs(folder: Path) -> Runs:
    return Runs(RunPlaces(folder / "runs", folder / "loras"), LiveRuns())


def delete_run(folder: Path) -> Path:
    """Move the run `cat` to the trash, as the server does. Returns where it is then."""
    root, runs = Root(folder / "runs", RUN), make_runs(folder)
    number = move_to_trash(root, "cat", runs.folder("cat"), lambda: runs.unused("cat"))
    return root.path / ".trash" / number / "content"


def train(folder: Path, mode: str = "resume") -> Path:
    with open_run(folder / "runs", "cat", mode) as run:
        run.describe(status="done", step=1)
    return run.folder


class TestRenaming:
    def test_a_cache_is_renamed(self, tmp_path: Path):
        before = content(write_set(tmp_path / "old", range(3)))
        assert rename("old", "group/new", [tmp_path]) == tmp_path / "group" / "new"
        assert paths.list_names([tmp_path]) == ["group/new"]
        assert content(tmp_path / "group" / "new") == before

    def test_a_renamed_cache_stays_in_its_root(self, tmp_path: Path):
        roots = [tmp_path / "first", tmp_path / "second"]
        write_cache(roots[1] / "old", 1)
        assert rename("old", "new", roots) == roots[1] / "new"

    @pytest.mark.parametrize("to", ["taken", "file", "folder", "old", "old/inside", "taken/inside"])
    def test_a_taken_name_is_refused(self, tmp_path: Path, to: str):
        write_cache(tmp_path / "old", 1)
        write_cache(tmp_path / "taken", 1)
        (tmp_path / "file").touch()
        (tmp_path / "folder" / "full").mkdir(parents=True)
        before = files(tmp_path)
        with pytest.raises(CacheError):
            rename("old", to, [tmp_path])
        assert files(tmp_path) == before

    def test_a_name_taken_in_another_root_is_refused(self, tmp_path: Path):
        write_cache(tmp_path / "a" / "old", 1)
        write_cache(tmp_path / "b" / "new", 1)
        with pytest.raises(CacheBusy, match="taken"):
            rename("old", "new", [tmp_path / "a", tmp_path / "b"])

    @pytest.mark.parametrize(
        "to", ["../out", "/abs", "C:/x", "nul", "a/../b", ".hidden", "x" * 300, "", "a\0b", "\ud800"]
    )
    def test_an_invalid_name_is_refused(self, tmp_path: Path, to: str):
        write_cache(tmp_path / "root" / "old", 1)
        before = files(tmp_path)
        with pytest.raises(CacheError):
            rename("old", to, [tmp_path / "root"])
        assert files(tmp_path) == before

    def test_empty_parent_folders_are_removed_and_others_stay(self, tmp_path: Path):
        for name in ("a/b/old", "c/old", "c/other"):
            write_cache(tmp_path / name, 1)
        rename("a/b/old", "new", [tmp_path])
        rename("c/old", "c/new", [tmp_path])
        assert {path.name for path in tmp_path.iterdir()} == {"c", "new"}
        assert paths.list_names([tmp_path]) == ["c/new", "c/other", "new"]

    def test_a_failed_move_leaves_no_empty_folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        write_cache(tmp_path / "old", 1)
        monkeypatch.setattr("os.rename", lambda *names: (_ for _ in ()).throw(PermissionError(13, "in use")))
        with pytest.raises(Refused, match="in use"):
            rename("old", "a/b/new", [tmp_path])
        assert [path.name for path in tmp_path.iterdir()] == ["old"]

    def test_a_link_is_not_moved(self, tmp_path: Path):
        write_cache(tmp_path / "real", 1)
        (tmp_path / "link").symlink_to(tmp_path / "real")
        with pytest.raises(Refused, match="is a link"):
            rename("link", "new", [tmp_path])

    def test_the_error_of_the_system_is_quoted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        def refuse(*names: Any) -> None:
            raise PermissionError(13, "The process cannot access the file")

        write_cache(tmp_path / "old", 1)
        monkeypatch.setattr("os.rename", refuse)
        with pytest.raises(Refused, match="cannot access the file; close the programs") as refusal:
            rename("old", "new", [tmp_path])
        assert refusal.value.status == 409
        assert paths.list_names([tmp_path]) == ["old"]


def use(folder: Path) -> None:
    with unused(folder):
        pass


class TestUse:
    def test_a_cache_with_a_reader_is_in_use(self, tmp_path: Path):
        reader = open_cache(write_cache(tmp_path / "set", 1))
        with pytest.raises(CacheBusy, match="reads it"):
            use(tmp_path / "set")
        del reader
        use(tmp_path / "set")

    def test_a_cache_with_a_writer_is_in_use(self, tmp_path: Path):
        write_cache(tmp_path / "set", 1)
        with CacheWriter(tmp_path / "set", append=True), pytest.raises(CacheBusy, match="writing"):
            use(tmp_path / "set")

    def test_files_open_and_idle_in_this_process_are_closed(self, tmp_path: Path):
        path = write_cache(tmp_path / "set", 2)
        handle_of("set", path).open()
        open_view(path)
        use(path)

    @pytest.mark.parametrize("change", ["rename", "delete"])
    def test_no_writer_can_start_while_a_cache_is_moved(
        self, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
    ):
        path, real, tried = write_cache(tmp_path / "set", 2), os.rename, []

        def late(*names: Any) -> None:
            tried.append(names)
            with pytest.raises(CacheBusy, match="is writing"):
                CacheWriter(path)
            real(*names)

        monkeypatch.setattr("os.rename", late)
        if change == "rename":
            moved = rename("set", "new", [tmp_path])
        else:
            moved = tmp_path / ".trash" / delete(Root(tmp_path), "set", path) / "content"
        assert tried and not path.exists() and not (moved / ".lock.holder").exists()
        assert len(open_cache(moved)) == 2
        with CacheWriter(moved):  # the lock was released
            pass

    def test_no_training_can_start_while_its_run_is_moved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        folder, real, tried = train(tmp_path, "new"), os.rename, []

        def late(*names: Any) -> None:
            tried.append(names)
            with pytest.raises(TrainError, match="another process is training"):
                train(tmp_path)
            real(*names)

        with monkeypatch.context() as patch:
            patch.setattr("os.rename", late)
            moved = delete_run(tmp_path)
        assert tried and not folder.exists() and not is_run_locked(moved)
        assert read_run_json(moved)["step"] == 1

    def test_a_run_in_training_is_not_moved(self, tmp_path: Path):
        with open_run(tmp_path / "runs", "cat") as run:
            run.describe(status="running")
            with pytest.raises(Refused, match="stop it first"):
                delete_run(tmp_path)
            assert run.folder.is_dir()

    def test_a_training_whose_run_is_moved_at_its_start_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        folder, real = train(tmp_path, "new"), folder_module.take_lock

        def late(*arguments: Any) -> Any:
            monkeypatch.setattr(folder_module, "take_lock", real)
            delete_run(tmp_path)
            return real(*arguments)

        monkeypatch.setattr(folder_module, "take_lock", late)
        with pytest.raises(TrainError, match="has just moved this run; start again"):
            train(tmp_path)
        assert not folder.exists()

    @pytest.mark.parametrize("kind", [CACHE, RUN])
    def test_where_open_files_cannot_be_moved_the_lock_is_closed_first(
        self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
    ):
        path, real = write_cache(tmp_path / "set", 2) if kind == CACHE else train(tmp_path, "new"), os.rename

        def as_on_windows(*names: Any) -> None:
            assert not [file for file in psutil.Process().open_files() if file.path.startswith(str(path))]
            real(*names)

        monkeypatch.setattr("streamcache.dataset_cache.format.files.LOCKS_OPEN_FILES", True)
        monkeypatch.setattr("os.rename", as_on_windows)
        if kind == RUN:
            assert not is_run_locked(delete_run(tmp_path))
        else:
            moved = rename("set", "new", [tmp_path])
            assert not (moved / ".lock.holder").exists() and len(open_cache(moved)) == 2

    @pytest.mark.skipif(locks.fcntl is None, reason="Windows always has file locks")
    @pytest.mark.parametrize("kind", [CACHE, RUN])
    def test_on_drives_without_file_locks_what_was_moved_is_not_locked(
        self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
    ):
        def no_locks(*_: Any) -> None:
            raise OSError(errno.ENOSYS, "not implemented")

        monkeypatch.setattr(locks.fcntl, "flock", no_locks)
        if kind == RUN:
            train(tmp_path, "new")
            assert not is_run_locked(delete_run(tmp_path))
        else:
            write_cache(tmp_path / "set", 2)
            with CacheWriter(rename("set", "new", [tmp_path])):
                pass


class TestTrash:
    def put(self, tmp_path: Path, name: str = "group/set") -> str:
        folder = write_set(tmp_path / name, range(2))
        return delete(Root(tmp_path), name, folder)

    def test_a_deleted_cache_is_not_listed_and_can_be_restored(self, tmp_path: Path):
        kept = content(write_set(tmp_path / "group" / "set", range(2)))
        number = self.put(tmp_path)
        assert paths.list_names([tmp_path]) == []
        (row,) = list_trash([Root(tmp_path)])
        assert (row.id, row.name, row.kind) == (number, "group/set", "cache") and row.bytes > 0
        assert restore(number, [Root(tmp_path)]).name == "group/set"
        assert content(tmp_path / "group" / "set") == kept
        assert list_trash([Root(tmp_path)]) == [] and not any((tmp_path / ".trash").iterdir())

    def test_the_parent_folder_is_removed_with_its_last_cache(self, tmp_path: Path):
        write_cache(tmp_path / "group" / "other", 1)
        self.put(tmp_path)
        assert paths.list_names([tmp_path]) == ["group/other"]
        delete(Root(tmp_path), "group/other", tmp_path / "group" / "other")
        assert [path.name for path in tmp_path.iterdir()] == [".trash"]

    def test_a_cache_opened_while_it_is_measured_is_not_deleted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        folder, readers = write_cache(tmp_path / "set", 1), []
        measure = moves.folder_bytes

        def opening(path: Path) -> int:
            readers.append(open_cache(path))
            return measure(path)

        monkeypatch.setattr(moves, "folder_bytes", opening)
        with pytest.raises(CacheBusy, match="reads it"):
            delete(Root(tmp_path), "set", folder)
        assert len(readers[0]) == 1 and folder.is_dir() and list_trash([Root(tmp_path)]) == []

    def test_a_cache_in_use_is_refused_before_it_is_measured(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        folder = write_cache(tmp_path / "set", 1)
        reader = open_cache(folder)
        monkeypatch.setattr(moves, "folder_bytes", lambda path: pytest.fail("it was measured"))
        with pytest.raises(CacheBusy, match="reads it"):
            delete(Root(tmp_path), "set", folder)
        assert len(reader) == 1 and not (tmp_path / ".trash").exists()

    @pytest.mark.parametrize("name", ["x" * 120, "con", "a run, 2"])
    def test_a_run_with_any_valid_name_can_be_restored(self, tmp_path: Path, name: str):
        root, runs = Root(tmp_path / "runs", RUN), make_runs(tmp_path)
        with open_run(root.path, name) as run:
            run.describe(status="done")
        number = move_to_trash(root, name, run.folder, lambda: runs.unused(name))
        assert restore(number, [Root(tmp_path), root]).name == name
        assert read_run_json(run.folder)["status"] == "done"
        again = move_to_trash(root, name, run.folder, lambda: runs.unused(name))
        run.folder.mkdir()
        with pytest.raises(Refused, match="another run"):
            restore(again, [root])

    @pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, Refused])
    def test_an_error_right_after_the_move_does_not_delete_what_was_moved(
        self, tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ):
        folder, real = write_set(tmp_path / "set", range(2)), os.rename
        before = content(folder)

        def interrupted(*names: Any) -> None:
            real(*names)
            raise error("stop")

        with monkeypatch.context() as patch:
            patch.setattr("os.rename", interrupted)
            with pytest.raises(error):
                delete(Root(tmp_path), "set", folder)
        (row,) = list_trash([Root(tmp_path)])
        assert row.name == "set"
        restore(row.id, [Root(tmp_path)])
        assert content(folder) == before

    def test_an_error_right_after_restoring_deletes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        number = self.put(tmp_path, "set")
        (tmp_path / ".trash" / number / "mine.txt").write_text("a file that the user put there")
        restore(number, [Root(tmp_path)])
        assert len(open_cache(tmp_path / "set")) == 2 and (tmp_path / ".trash" / number / "mine.txt").exists()

    def test_an_unreadable_cache_can_be_deleted(self, tmp_path: Path):
        (write_cache(tmp_path / "set", 1) / "dataset.json").write_text("no JSON")
        delete(Root(tmp_path), "set", tmp_path / "set")
        assert paths.list_names([tmp_path]) == []

    def test_restoring_does_not_overwrite_a_new_cache(self, tmp_path: Path):
        number = self.put(tmp_path, "set")
        write_cache(tmp_path / "set", 1)
        with pytest.raises(CacheBusy, match="taken"):
            restore(number, [Root(tmp_path)])
        assert len(open_cache(tmp_path / "set")) == 1 and len(list_trash([Root(tmp_path)])) == 1

    def test_emptying_removes_only_the_named_items(self, tmp_path: Path):
        first, second = self.put(tmp_path), self.put(tmp_path, "other")
        size = {row.id: row.bytes for row in list_trash([Root(tmp_path)])}[first]
        assert remove_for_good([first, first], [Root(tmp_path)]) == size
        assert [row.id for row in list_trash([Root(tmp_path)])] == [second]

    @pytest.mark.parametrize("number", ["", "..", "../set", "/", "0" * 32, "A" * 32, "0" * 31, "\0" * 32, ".trash"])
    def test_an_invalid_id_is_refused(self, tmp_path: Path, number: str):
        self.put(tmp_path)
        write_cache(tmp_path / "set", 1)
        before = files(tmp_path)
        for change in (restore, lambda n, roots: remove_for_good([n], roots)):
            with pytest.raises(Refused, match="no longer"):
                change(number, [Root(tmp_path)])
        assert files(tmp_path) == before

    def test_links_in_a_trash_are_not_followed(self, tmp_path: Path):
        outside = write_cache(tmp_path / "outside", 1)
        (tmp_path / "root" / ".trash").mkdir(parents=True)
        (tmp_path / "root" / ".trash" / ("0" * 32)).symlink_to(outside)
        (tmp_path / "root" / ".trash" / ("1" * 32)).mkdir()
        (tmp_path / "root" / ".trash" / ("1" * 32) / "content").symlink_to(outside)
        assert list_trash([Root(tmp_path / "root")]) == []
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked" / ".trash").symlink_to(outside)
        folder = write_cache(tmp_path / "linked" / "set", 1)
        with pytest.raises(CacheError, match="link"):
            delete(Root(tmp_path / "linked"), "set", folder)
        assert len(open_cache(folder)) == len(open_cache(outside)) == 1

    @pytest.mark.parametrize(
        "note", ['{"name": "../../out"}', '{"name": 7, "bytes": -1, "deleted": "x"}', "no JSON", "[]"]
    )
    def test_an_invalid_note_cannot_point_elsewhere(self, tmp_path: Path, note: str):
        number = self.put(tmp_path / "root", "set")
        (tmp_path / "root" / ".trash" / number / "deleted.json").write_text(note)
        (row,) = list_trash([Root(tmp_path / "root")])
        assert json.dumps(row.to_json(), allow_nan=False)
        try:
            restore(number, [Root(tmp_path / "root")])
        except CacheError:
            assert len(list_trash([Root(tmp_path / "root")])) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["root"]

    def test_a_failed_move_leaves_the_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        folder = write_cache(tmp_path / "set", 1)
        monkeypatch.setattr("os.rename", lambda *names: (_ for _ in ()).throw(PermissionError(13, "in use")))
        with pytest.raises(Refused, match="in use"):
            delete(Root(tmp_path), "set", folder)
        assert len(open_cache(folder)) == 1 and list_trash([Root(tmp_path)]) == []


NFC, NFD = "\u00e9t\u00e9", "e\u0301te\u0301"


def test_a_cache_and_a_run_are_renamed_and_deleted_by_another_unicode_form_of_their_name(tmp_path: Path):
    roots = [tmp_path / "elsewhere", tmp_path / "caches"]
    write_set(roots[1] / NFD, range(3))
    assert moves.root_of(NFC, paths.path_to_open(NFC, roots), roots) == roots[1]
    assert rename(NFC, "summer", roots) == roots[1] / "summer" and not (roots[1] / NFD).exists()
    with open_run(tmp_path / "runs", NFD) as run:
        run.describe(status="done", step=3)
    runs = make_runs(tmp_path)
    number = move_to_trash(Root(tmp_path / "runs", RUN), NFD, runs.folder(NFC), lambda: runs.unused(NFC))
    assert not (tmp_path / "runs" / NFD).exists()
    assert restore(number, [Root(tmp_path / "runs", RUN)]).name == NFD and runs.folder(NFC).name == NFD
    number = move_to_trash(Root(tmp_path / "runs", RUN), NFD, runs.folder(NFC), lambda: runs.unused(NFC))
    with open_run(tmp_path / "runs", NFC) as run:
        run.describe(status="done", step=3)
    assert restore(number, [Root(tmp_path / "runs", RUN)]).name == NFD
    assert {runs.folder(name).name for name in (NFC, NFD)} == {NFC, NFD}, "both are reachable"


def test_a_date_in_the_future_counts_as_now_in_the_trash(tmp_path: Path):
    root = Root(tmp_path / "caches")
    number = delete(root, "cat", write_set(root.path / "cat", range(2)))
    note = root.path / ".trash" / number / "deleted.json"
    note.write_text(json.dumps({"name": "cat", "bytes": 1, "deleted": time.time() + 1e9}))
    before = time.time()
    (row,) = list_trash([root])
    assert before - 1 <= row.deleted <= time.time() + 1
    assert remove_for_good([number], [root]) > 0
