"""What pages do to caches: clean, rename, trash and jobs. What is in use stays, and what is refused changes nothing."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, open_cache
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.lora_train.run.folder import open_run, read_run_json
from streamcache.nodes.library import open_caches, paths
from streamcache.nodes.library.handles import handle_of
from streamcache.nodes.server import cleaning, jobs, trash, views
from streamcache.nodes.server.jobs import Jobs
from streamcache.nodes.server.moves import refuse_if_in_use, rename
from streamcache.nodes.server.refusals import Refused
from streamcache.nodes.server.trash import Root
from streamcache.nodes.server.upkeep import duplicating, exporting, verifying

from ...support.datasets import content, folder_bytes, listing, shard_files, write_set
from ...support.samples import write_cache


@pytest.fixture(autouse=True)
def nothing_open():
    yield
    open_caches.close_idle()
    views.close()


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.name.startswith(".lock")}


def throw_away(root: Root, name: str, folder: Path) -> str:
    return trash.throw_away(root, name, folder, lambda: refuse_if_in_use(folder))


class TestRenaming:
    def test_a_cache_gets_another_name(self, tmp_path: Path):
        before = content(write_set(tmp_path / "old", range(3)))
        assert rename("old", "group/new", [tmp_path]) == tmp_path / "group" / "new"
        assert paths.list_names([tmp_path]) == ["group/new"]
        assert content(tmp_path / "group" / "new") == before

    def test_it_stays_in_its_root(self, tmp_path: Path):
        roots = [tmp_path / "first", tmp_path / "second"]
        write_cache(roots[1] / "old", 1)
        assert rename("old", "new", roots) == roots[1] / "new"

    @pytest.mark.parametrize("to", ["taken", "file", "folder", "old", "old/inside", "taken/inside"])
    def test_a_name_that_is_taken_is_refused(self, tmp_path: Path, to: str):
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
    def test_a_name_that_leads_out_is_refused(self, tmp_path: Path, to: str):
        write_cache(tmp_path / "root" / "old", 1)
        before = files(tmp_path)
        with pytest.raises(CacheError):
            rename("old", to, [tmp_path / "root"])
        assert files(tmp_path) == before

    def test_a_group_that_got_empty_goes_and_one_that_holds_something_stays(self, tmp_path: Path):
        for name in ("a/b/old", "c/old", "c/other"):
            write_cache(tmp_path / name, 1)
        rename("a/b/old", "new", [tmp_path])
        rename("c/old", "c/new", [tmp_path])
        assert {path.name for path in tmp_path.iterdir()} == {"c", "new"}
        assert paths.list_names([tmp_path]) == ["c/new", "c/other", "new"]

    def test_a_move_that_fails_leaves_no_group_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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

    def test_a_system_that_says_no_is_quoted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        def refuse(*names: Any) -> None:
            raise PermissionError(13, "The process cannot access the file")

        write_cache(tmp_path / "old", 1)
        monkeypatch.setattr("os.rename", refuse)
        with pytest.raises(Refused, match="cannot access the file; close whatever") as refusal:
            rename("old", "new", [tmp_path])
        assert refusal.value.status == 409
        assert paths.list_names([tmp_path]) == ["old"]


class TestUse:
    def test_what_somebody_reads_is_in_use(self, tmp_path: Path):
        reader = open_cache(write_cache(tmp_path / "set", 1))
        with pytest.raises(CacheBusy, match="reads it"):
            refuse_if_in_use(tmp_path / "set")
        del reader
        refuse_if_in_use(tmp_path / "set")

    def test_what_somebody_writes_is_in_use(self, tmp_path: Path):
        write_cache(tmp_path / "set", 1)
        with CacheWriter(tmp_path / "set", append=True), pytest.raises(CacheBusy, match="writing"):
            refuse_if_in_use(tmp_path / "set")

    def test_what_is_open_and_idle_in_this_process_is_let_go(self, tmp_path: Path):
        path = write_cache(tmp_path / "set", 2)
        handle_of("set", path).open()
        views.view(path)
        refuse_if_in_use(path)


class TestTrash:
    def put(self, tmp_path: Path, name: str = "group/set") -> str:
        folder = write_set(tmp_path / name, range(2))
        return throw_away(Root(tmp_path), name, folder)

    def test_what_was_deleted_is_out_of_sight_and_comes_back(self, tmp_path: Path):
        kept = content(write_set(tmp_path / "group" / "set", range(2)))
        number = self.put(tmp_path)
        assert paths.list_names([tmp_path]) == []
        (row,) = trash.list_trash([Root(tmp_path)])
        assert (row.id, row.name, row.kind) == (number, "group/set", "cache") and row.bytes > 0
        assert trash.restore(number, [Root(tmp_path)]).name == "group/set"
        assert content(tmp_path / "group" / "set") == kept
        assert trash.list_trash([Root(tmp_path)]) == [] and not any((tmp_path / ".trash").iterdir())

    def test_the_group_of_the_last_cache_goes_with_it(self, tmp_path: Path):
        write_cache(tmp_path / "group" / "other", 1)
        self.put(tmp_path)
        assert paths.list_names([tmp_path]) == ["group/other"]
        throw_away(Root(tmp_path), "group/other", tmp_path / "group" / "other")
        assert [path.name for path in tmp_path.iterdir()] == [".trash"]

    def test_what_is_opened_while_it_is_measured_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        folder, readers = write_cache(tmp_path / "set", 1), []
        measure = trash.folder_bytes

        def opening(path: Path) -> int:
            readers.append(open_cache(path))
            return measure(path)

        monkeypatch.setattr(trash, "folder_bytes", opening)
        with pytest.raises(CacheBusy, match="reads it"):
            throw_away(Root(tmp_path), "set", folder)
        assert len(readers[0]) == 1 and folder.is_dir() and trash.list_trash([Root(tmp_path)]) == []

    def test_what_is_in_use_is_refused_before_it_is_measured(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        folder = write_cache(tmp_path / "set", 1)
        reader = open_cache(folder)
        monkeypatch.setattr(trash, "folder_bytes", lambda path: pytest.fail("it was measured"))
        with pytest.raises(CacheBusy, match="reads it"):
            throw_away(Root(tmp_path), "set", folder)
        assert len(reader) == 1 and not (tmp_path / ".trash").exists()

    @pytest.mark.parametrize("name", ["x" * 120, "con", "a run, 2"])
    def test_every_name_that_a_run_may_have_comes_back(self, tmp_path: Path, name: str):
        root = Root(tmp_path / "runs", trash.RUN)
        with open_run(root.path, name) as run:
            run.describe(status="done")
        number = trash.throw_away(root, name, run.folder, lambda: None)
        assert trash.restore(number, [Root(tmp_path), root]).name == name
        assert read_run_json(run.folder)["status"] == "done"
        again = trash.throw_away(root, name, run.folder, lambda: None)
        run.folder.mkdir()
        with pytest.raises(Refused, match="another run"):
            trash.restore(again, [root])

    def test_a_cache_that_cannot_be_opened_can_be_deleted(self, tmp_path: Path):
        (write_cache(tmp_path / "set", 1) / "dataset.json").write_text("no JSON")
        throw_away(Root(tmp_path), "set", tmp_path / "set")
        assert paths.list_names([tmp_path]) == []

    def test_a_name_taken_meanwhile_is_not_overwritten(self, tmp_path: Path):
        number = self.put(tmp_path, "set")
        write_cache(tmp_path / "set", 1)
        with pytest.raises(CacheBusy, match="taken"):
            trash.restore(number, [Root(tmp_path)])
        assert len(open_cache(tmp_path / "set")) == 1 and len(trash.list_trash([Root(tmp_path)])) == 1

    def test_emptying_removes_what_is_named_and_nothing_else(self, tmp_path: Path):
        first, second = self.put(tmp_path), self.put(tmp_path, "other")
        size = {row.id: row.bytes for row in trash.list_trash([Root(tmp_path)])}[first]
        assert trash.remove_for_good([first, first], [Root(tmp_path)]) == size
        assert [row.id for row in trash.list_trash([Root(tmp_path)])] == [second]

    @pytest.mark.parametrize("number", ["", "..", "../set", "/", "0" * 32, "A" * 32, "0" * 31, "\0" * 32, ".trash"])
    def test_an_id_leads_nowhere_else(self, tmp_path: Path, number: str):
        self.put(tmp_path)
        write_cache(tmp_path / "set", 1)
        before = files(tmp_path)
        for change in (trash.restore, lambda n, roots: trash.remove_for_good([n], roots)):
            with pytest.raises(Refused, match="no longer"):
                change(number, [Root(tmp_path)])
        assert files(tmp_path) == before

    def test_links_in_a_trash_are_not_followed(self, tmp_path: Path):
        outside = write_cache(tmp_path / "outside", 1)
        (tmp_path / "root" / ".trash").mkdir(parents=True)
        (tmp_path / "root" / ".trash" / ("0" * 32)).symlink_to(outside)
        (tmp_path / "root" / ".trash" / ("1" * 32)).mkdir()
        (tmp_path / "root" / ".trash" / ("1" * 32) / "content").symlink_to(outside)
        assert trash.list_trash([Root(tmp_path / "root")]) == []
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked" / ".trash").symlink_to(outside)
        folder = write_cache(tmp_path / "linked" / "set", 1)
        with pytest.raises(CacheError, match="link"):
            throw_away(Root(tmp_path / "linked"), "set", folder)
        assert len(open_cache(folder)) == len(open_cache(outside)) == 1

    @pytest.mark.parametrize(
        "note", ['{"name": "../../out"}', '{"name": 7, "bytes": -1, "deleted": "x"}', "no JSON", "[]"]
    )
    def test_a_strange_note_leads_nowhere_else(self, tmp_path: Path, note: str):
        number = self.put(tmp_path / "root", "set")
        (tmp_path / "root" / ".trash" / number / "deleted.json").write_text(note)
        (row,) = trash.list_trash([Root(tmp_path / "root")])
        assert json.dumps(row.to_json(), allow_nan=False)
        try:
            trash.restore(number, [Root(tmp_path / "root")])
        except CacheError:
            assert len(trash.list_trash([Root(tmp_path / "root")])) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["root"]

    def test_a_move_that_fails_leaves_the_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        folder = write_cache(tmp_path / "set", 1)
        monkeypatch.setattr("os.rename", lambda *names: (_ for _ in ()).throw(PermissionError(13, "in use")))
        with pytest.raises(Refused, match="in use"):
            throw_away(Root(tmp_path), "set", folder)
        assert len(open_cache(folder)) == 1 and trash.list_trash([Root(tmp_path)]) == []


class TestCleaning:
    @staticmethod
    def wasteful(path: Path) -> Path:
        write_set(path, range(6))
        write_set(path, range(2))
        open_caches.close_idle()
        (path / ".index.123.tmp").write_bytes(b"x" * 1000)
        return path

    def test_exactly_what_was_shown_is_removed(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        before, size = content(path), folder_bytes(path)
        shown = cleaning.preview(path)
        done = cleaning.carry_out(path, shown["plan"], ["debris", "superseded", "unused"])
        assert done["bytes"] == shown["bytes"] > 0
        lock = sum(file.stat().st_size for file in path.glob(".lock*"))
        assert folder_bytes(path) - lock == size - done["bytes"]
        assert content(path) == before

    def test_a_preview_changes_nothing(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        before = listing(path)
        first = cleaning.preview(path)
        assert cleaning.preview(path) == first and listing(path) == before
        assert json.dumps(first)

    def test_only_chosen_categories_are_removed(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        done = cleaning.carry_out(path, cleaning.preview(path)["plan"], ["debris"])
        assert [removal["category"] for removal in done["removals"]] == ["debris"] and done["bytes"] == 1000
        assert not (path / ".index.123.tmp").exists()

    def test_a_cache_that_changed_since_is_left_alone(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        plan = cleaning.preview(path)["plan"]
        (path / ".index.124.tmp").write_bytes(b"new")
        before = listing(path)
        with pytest.raises(Refused, match="changed") as refusal:
            cleaning.carry_out(path, plan, ["debris"])
        assert refusal.value.status == 409 and listing(path) == before

    def test_a_cache_that_is_written_to_is_left_alone(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        with CacheWriter(path, append=True):
            plan = cleaning.preview(path)["plan"]
            with pytest.raises(CacheBusy):
                cleaning.carry_out(path, plan, ["debris"])

    def test_a_reader_keeps_what_it_reads(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(6))
        reader = open_cache(path)
        write_set(path, range(2))
        shown = cleaning.preview(path)
        held = next(removal for removal in shown["removals"] if removal["category"] == "superseded")
        assert held["held_by"]
        with pytest.raises(CacheBusy, match="reads"):
            cleaning.carry_out(path, shown["plan"], ["superseded"])
        assert len(content(reader)) == 6

    @pytest.mark.parametrize("categories", [[], ["everything"], ["debris", "../x"]])
    def test_an_unknown_category_is_refused(self, tmp_path: Path, categories: list[str]):
        path = self.wasteful(tmp_path / "set")
        with pytest.raises(Refused, match="categories"):
            cleaning.carry_out(path, cleaning.preview(path)["plan"], categories)


class Told:
    """What pages are told, and a wait for a job's end."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.over = threading.Event()
        self.jobs = Jobs(self)

    def __call__(self, job: dict[str, Any]) -> None:
        self.heard.append(job)
        if job["state"] != "running":
            self.over.set()

    def run(self, *given: Any, **options: Any) -> dict[str, Any]:
        self.over.clear()
        self.jobs.start(*given, **options)
        assert self.over.wait(60)
        return self.heard[-1]


class TestJobs:
    def test_a_good_cache_verifies(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(jobs, "SECONDS_BETWEEN", 0.0)
        told = Told()
        job = told.run("verify", "set", verifying(write_set(tmp_path / "set", range(5))))
        assert (job["state"], job["problems"], job["words"]) == ("done", [], "Everything is as it should be")
        assert job["done"] == job["total"] > 0 and job["ended"] >= job["began"]
        steps = [each["done"] for each in told.heard]
        assert steps == sorted(steps) and len(steps) > 5
        assert told.jobs.rows() == [job]

    def test_damage_is_listed(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(5))
        shard_files(path)[0].unlink()
        job = Told().run("verify", "set", verifying(path))
        assert job["state"] == "done" and job["problem_count"] >= len(job["problems"]) > 1
        assert {problem["kind"] for problem in job["problems"]} == {"missing"}

    def test_words_come_seldom(self, tmp_path: Path):
        told = Told()
        told.run("verify", "set", verifying(write_set(tmp_path / "set", range(40))))
        assert len(told.heard) < 10

    @pytest.mark.parametrize(("work", "same_id"), [(duplicating, False), (exporting, True)])
    def test_a_copy_holds_the_same(self, tmp_path: Path, platform: str, work: Callable, same_id: bool):
        path = write_set(tmp_path / "set", range(4))
        job = Told().run("copy", "set", work(path, tmp_path / "group" / "copy", tmp_path), to="copy")
        assert job["state"] == "done" and job["to"] == "copy"
        copy = tmp_path / "group" / "copy"
        assert content(copy) == content(path)
        assert (read_manifest(path).id == read_manifest(copy).id) is same_id
        assert {each.name for each in tmp_path.iterdir()} == {"set", "group"}

    def test_a_cancelled_copy_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        path = write_set(tmp_path / "set", range(4))
        told, started, go_on = Told(), threading.Event(), threading.Event()

        def slowly(source: Path, target: Path, progress: Callable) -> None:
            target.mkdir()
            (target / "half").touch()
            started.set()
            assert go_on.wait(60)
            progress(1, 2)

        monkeypatch.setattr("streamcache.nodes.server.upkeep.duplicate", slowly)
        number = told.jobs.start("duplicate", "set", duplicating(path, tmp_path / "group" / "copy", tmp_path))["id"]
        assert started.wait(60)
        with pytest.raises(Refused, match="under way"):
            told.jobs.start("duplicate", "set", duplicating(path, tmp_path / "group" / "copy", tmp_path))
        told.jobs.cancel(number)
        go_on.set()
        assert told.over.wait(60) and told.heard[-1]["state"] == "cancelled"
        assert [each.name for each in tmp_path.iterdir()] == ["set"]

    def test_copies_of_a_killed_server_go_after_a_day(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(2))
        for name in (".copy-old", ".copy-new"):
            (tmp_path / name).mkdir()
        os.utime(tmp_path / ".copy-old", (0, 0))
        assert Told().run("duplicate", "set", duplicating(path, tmp_path / "copy", tmp_path))["state"] == "done"
        assert {each.name for each in tmp_path.iterdir()} == {"set", "copy", ".copy-new"}

    def test_a_failure_is_told(self, tmp_path: Path):
        shutil.copytree(write_cache(tmp_path / "set", 1), tmp_path / "copy")
        job = Told().run("duplicate", "set", duplicating(tmp_path / "set", tmp_path / "copy", tmp_path))
        assert job["state"] == "failed" and "taken" in job["error"]
        job = Told().run("odd", "set", lambda watch: 1 // 0)
        assert job["state"] == "failed" and "ZeroDivisionError" in job["error"]

    def test_only_the_last_are_kept_and_few_run_at_once(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(jobs, "KEPT", 3)
        told = Told()
        for n in range(6):
            told.run("quick", str(n), lambda watch: "")
        assert [job["name"] for job in told.jobs.rows()] == ["5", "4", "3"]
        go_on = threading.Event()
        for n in range(jobs.AT_ONCE):
            told.jobs.start("slow", str(n), lambda watch: str(go_on.wait(60)))
        with pytest.raises(Refused, match="under way"):
            told.jobs.start("slow", "one more", lambda watch: "")
        go_on.set()
        with pytest.raises(Refused, match="no such job"):
            told.jobs.cancel("unknown")
