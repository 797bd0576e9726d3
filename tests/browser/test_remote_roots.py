"""Remote roots in the Datasets tab: what is here of each cache, and Pull, Push and Sync, with clicks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamcache import dev
from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.travel import pull, push
from streamcache.tests.browser.cache_tab import BUTTON, CacheTab, find
from streamcache.tests.browser.chromium import Page, screenshot_folder
from streamcache.tests.browser.conftest import serious_errors
from streamcache.tests.browser.gallery import write_landscapes
from streamcache.tests.host.remote_server import STUDIO, server_with_root, use_state_of
from streamcache.tests.host.server import Server
from streamcache.tests.support.datasets import write_set

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(host: dev.Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server_with_root(host, tmp_path_factory.mktemp("remote")) as (server, _):
        yield server


@pytest.fixture
def tab(
    page: Page,
    server: Server,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[CacheTab]:
    use_state_of(server, monkeypatch)
    page.resize(1500, 950)
    page.wait_for(BUTTON)
    page.run("void 0")
    page.errors.clear()
    yield CacheTab(page, screenshot_folder(tmp_path_factory.getbasetemp() / "screenshots"))
    page.run("void 0")
    assert serious_errors(page) == []


def local(server: Server, name: str) -> Path:
    return server.base / "output" / "streamcache" / name


def row(name: str, **facts: str) -> str:
    found = "".join(f'[data-{key}="{value}"]' for key, value in facts.items())
    return f"document.querySelector('.sc-remote[data-remote=\"{name}\"]{found}')"


def press(tab: CacheTab, name: str, act: str) -> None:
    tab.page.click(f"{row(name)}.querySelector('[data-act={act}]')")


def test_f6_remote_caches_are_shown_pulled_pushed_and_synced(tab: CacheTab, server: Server, tmp_path: Path):
    mine = local(server, "landscapes")
    write_landscapes(mine, 12)
    write_landscapes(local(server, "dunes"), 6, seed=2)
    push(local(server, "dunes"), f"{STUDIO}/dunes")
    write_landscapes(local(server, "dunes"), 8, seed=2)
    push(write_set(tmp_path / "cats", range(30)), f"{STUDIO}/cats")
    push(write_set(tmp_path / "dogs", range(5)), f"{STUDIO}/group/dogs")
    pull(f"{STUDIO}/group/dogs", local(server, "dogs"))
    push(write_set(tmp_path / "dogs", range(9)), f"{STUDIO}/group/dogs")
    tab.open()
    tab.refresh()
    tab.page.wait_for(row("studio/cats", local="none"), 60)
    tab.page.wait_for(row("studio/dunes", relation="ahead"), 60)
    tab.page.wait_for(row("studio/group/dogs", relation="behind"), 60)
    tab.page.run("document.querySelector('.sc-remotes').scrollIntoView({block: 'end'})")
    tab.page.screenshot(tab.shots / "remote_roots.png")
    press(tab, "studio/cats", "pull")
    tab.page.wait_for(row("studio/cats", relation="same"), 60)
    assert len(open_cache(local(server, "studio/cats"))) == 30
    press(tab, "studio/dunes", "push")
    tab.page.wait_for(row("studio/dunes", relation="same"), 60)
    assert len(open_cache(f"{STUDIO}/dunes")) == 8
    write_set(local(server, "dogs"), range(7))
    tab.refresh()
    tab.page.wait_for(row("studio/group/dogs", relation="apart"), 60)
    press(tab, "studio/group/dogs", "sync")
    tab.page.wait_for(find(".sc-dialog input[value=remote]"))
    tab.page.screenshot(tab.shots / "remote_sync.png")
    assert not tab.page.run("!!document.querySelector('.sc-dialog input:checked')"), "nothing is chosen for the user"
    assert tab.page.run("document.querySelector('.sc-dialog button[type=submit]').disabled")
    sides = tab.page.run("[...document.querySelectorAll('.sc-keep-side')].map((side) => side.textContent)")
    for side, path, count in zip(sides, (local(server, "dogs"), f"{STUDIO}/group/dogs"), (7, 9), strict=True):
        assert f"{count} samples" in side and open_cache(path).generation[:12] in side and "published" in side
    tab.page.click(find(".sc-dialog input[value=remote]"))
    tab.page.click(find(".sc-dialog button[type=submit]"))
    tab.page.wait_for(row("studio/group/dogs", relation="same"), 60)
    assert len(open_cache(local(server, "dogs"))) == 9


def test_a_cache_is_pushed_from_its_menu(tab: CacheTab, server: Server):
    write_landscapes(local(server, "fresh"), 4, seed=5)
    tab.open()
    tab.refresh()
    tab.wait_for_card("fresh")
    tab.page.click(f"{tab.card('fresh')}.querySelector('[aria-haspopup=menu]')")
    tab.page.click(find(".sc-menu-item", "Push…"))
    tab.page.wait_for(find(".sc-dialog select"))
    tab.page.screenshot(tab.shots / "remote_push.png")
    tab.page.click(find(".sc-dialog button[type=submit]"))
    tab.page.wait_for(row("studio/fresh", relation="same"), 60)
    assert len(open_cache(f"{STUDIO}/fresh")) == 4
