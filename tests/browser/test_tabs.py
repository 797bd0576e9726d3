"""The pack's two tabs share one place in the sidebar: the one that was opened last is shown."""

from collections.abc import Callable

import pytest

from streamcache.tests.browser.chromium import tab_button
from streamcache.tests.browser.training_page import TrainingPage

pytestmark = [pytest.mark.browser, pytest.mark.both_front_ends]
NAMES = {"training": "LoRA training", "caches": "Dataset caches"}
KEYS = {"training": "T", "caches": "D"}
HEADINGS = "[...document.querySelectorAll('.side-bar-panel .sc-panel h2')].map((each) => each.textContent).join()"
# How many of the page's listeners are there: a panel that is gone leaves none behind.
HEARERS = "import('/extensions/streamcache/training/runs.js').then(({store}) => store.listeners.size)"


def by_click(training: TrainingPage, name: str) -> None:
    training.page.click(tab_button(f"streamcache-{name}"))


def by_key(training: TrainingPage, name: str) -> None:
    training.page.press(KEYS[name], shift=True)


@pytest.mark.parametrize("switch", [by_click, by_key])
def test_each_tab_shows_its_own_panel(training: TrainingPage, switch: Callable[[TrainingPage, str], None]):
    training.close_tab()
    training.page.run("document.activeElement.blur()")
    before = training.page.run(HEARERS)
    for name in ("training", "caches", "training", "caches", "caches", "caches", "training", "training"):
        shown = training.page.run("app.extensionManager.sidebarTab.activeSidebarTabId")
        switch(training, name)
        closes = shown == f"streamcache-{name}"
        training.page.wait_for(f"{HEADINGS} === '{'' if closes else NAMES[name]}'", 10)
        watched = 1 if name == "training" and not closes else 0
        assert training.page.run(HEARERS) == before + watched


def test_a_key_moves_the_focus_to_the_heading(training: TrainingPage):
    training.close_tab()
    training.page.run("document.activeElement.blur()")
    for name in ("training", "caches"):
        by_key(training, name)
        training.page.wait_for(f"document.activeElement.matches('h2') && {HEADINGS} === '{NAMES[name]}'", 10)
    training.close_tab()
