"""`streamcache push`, `pull` and `sync`, between folders: what they print, their exit codes, and names of roots."""

from pathlib import Path

import pytest

from streamcache.dataset_cache import PublishLock, open_cache, place_of

from ...support.commands import run, run_json
from ...support.datasets import content, write_set


@pytest.fixture
def near(tmp_path: Path) -> Path:
    return write_set(tmp_path / "near", range(4))


def test_f6_a_cache_is_pushed_pulled_and_synced(near: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    far, copy = tmp_path / "far", tmp_path / "copy"
    code, facts = run_json(capsys, "push", near, far)
    assert (code, facts["action"], facts["files"], facts["replaced"]) == (0, "push", 3, None)
    assert run("pull", far, copy) == 0 and "Pulled generation" in capsys.readouterr().out
    write_set(copy, range(6))
    assert run("sync", copy, far) == 0 and run("sync", near, far) == 0
    assert run("sync", near, far) == 0 and "Nothing to do" in capsys.readouterr().out.splitlines()[-1]
    assert content(near) == content(copy) == content(far)


@pytest.mark.parametrize("command", ["push", "pull", "sync"])
def test_a_dry_run_changes_nothing(near: Path, tmp_path: Path, capsys: pytest.CaptureFixture, command: str):
    places = (near, tmp_path / "far")
    code, facts = run_json(capsys, command, *places, "--dry-run")
    assert code == 0 and facts["dry_run"] and facts["bytes"] == facts["total_bytes"] > 0
    assert not (tmp_path / "far").exists()


def test_f6_both_sides_changed_is_refused_with_the_way_out(near: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    far = tmp_path / "far"
    run("push", near, far)
    write_set(near, range(5))
    write_set(far, range(6))
    code, facts = run_json(capsys, "sync", near, far)
    assert code == 1 and all(open_cache(each).generation[:12] in facts["error"] for each in (near, far))
    assert "--keep local" in facts["error"]
    assert run("sync", near, far, "--keep", "remote") == 0 and len(open_cache(near)) == 6


def test_a_place_in_use_exits_with_4(near: Path, tmp_path: Path):
    run("push", near, tmp_path / "far")
    write_set(near, range(5))
    lock = PublishLock(tmp_path / "far")
    try:
        assert run("push", near, tmp_path / "far") == 4
    finally:
        lock.release()


def test_prune_tells_what_waits_and_grace_needs_it(near: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    far = tmp_path / "far"
    for count in (4, 5, 6):
        write_set(near, range(count))
        run("push", near, far)
    capsys.readouterr()
    assert run("push", near, far, "--prune") == 0 and "still in the time of grace" in capsys.readouterr().out
    assert run("push", near, far, "--prune", "--grace", 0) == 0
    assert "Removed 1 older file" in capsys.readouterr().out
    for wrong in (["--grace", 1], ["--prune", "--grace", -1], ["--keep", "both"]):
        try:
            assert run("push", near, far, *wrong) == 2
        except SystemExit as ended:
            assert ended.code == 2


@pytest.fixture
def studio(state_dir: Path) -> str:
    (state_dir / "remotes.toml").write_text('[roots.studio]\naddress = "s3://bucket/sets"\n')
    return "s3://bucket/sets"


def test_the_name_of_a_root_stands_for_its_address(studio: str):
    assert place_of("studio/my_set") == place_of("studio\\my_set") == f"{studio}/my_set"
    assert place_of("./studio/my_set") == "./studio/my_set" and place_of("/mnt/studio") == "/mnt/studio"
    assert place_of("s3://other/my_set") == "s3://other/my_set"


def test_a_mistake_in_the_list_of_roots_does_not_hide_local_caches(near: Path, state_dir: Path):
    (state_dir / "remotes.toml").write_text("[roots.studio")
    assert place_of(str(near)) == str(near) and run("info", near) == 0
    assert run("info", "studio/my_set") == 1


@pytest.mark.parametrize("command", ["push", "pull", "sync"])
def test_a_mistyped_root_becomes_no_folder(
    near: Path, studio: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, command: str
):
    monkeypatch.chdir(near.parent)
    places = ("stduio/my_set", "near") if command == "pull" else ("near", "stduio/my_set")
    assert run(command, *places) == 1 and "(registered: studio)" in capsys.readouterr().err
    assert [each.name for each in near.parent.iterdir()] == ["near"]
    (near.parent / "nas").mkdir()
    assert run("push", "near", "nas/my_set") == 0 and run("push", "near", "plain") == 0


def test_a_missing_cache_is_named(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert run("push", tmp_path / "gone", tmp_path / "far") == 1
    assert "gone: nothing is published here" in capsys.readouterr().err
