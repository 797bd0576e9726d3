"""The Datasets tab, used with clicks and keys."""

import json
from pathlib import Path

from .chromium import Page, tab_button

BUTTON = tab_button("streamcache-caches")
PANEL = ".sc-panel[aria-label]"
TILES = "[...document.querySelectorAll('.sc-tile:not([hidden])')]"


def find(selector: str, text: str = "") -> str:
    """An expression for the first visible element of a selector, with exactly this text if one is given."""
    same = f" && element.textContent.trim() === {json.dumps(text)}" if text else ""
    return f"[...document.querySelectorAll({json.dumps(selector)})].find((element) => element.checkVisibility(){same})"


class CacheTab:
    def __init__(self, page: Page, shots: Path) -> None:
        self.page = page
        self.shots = shots

    def open(self) -> None:
        """Show the list of caches, whatever was open before."""
        if not self.page.run(f"Boolean(document.querySelector('{PANEL}'))"):
            self.page.click(BUTTON)
        self.page.wait_for(f"document.querySelector('{PANEL}')")
        if self.page.run("Boolean(document.querySelector('.sc-head .pi-arrow-left'))"):
            self.page.click("document.querySelector('.sc-head .pi-arrow-left').parentElement")
        self.page.wait_for("document.querySelector('.sc-cards')")

    def reopen(self) -> None:
        """Close the tab and open it again."""
        for there in (False, True):
            self.page.run("app.extensionManager.sidebarTab.toggleSidebarTab('streamcache-caches')")
            self.page.wait_for(f"Boolean(document.querySelector('{PANEL}')) === {json.dumps(there)}")

    def card(self, name: str) -> str:
        return f"document.querySelector('.sc-card[data-name={json.dumps(name)}]')"

    def wait_for_card(self, name: str, there: bool = True) -> None:
        self.page.wait_for(f"{'' if there else '!'}Boolean({self.card(name)})", 30)

    def wait_for_cover(self, name: str) -> None:
        """Wait until the thumbnail of a card has been loaded."""
        self.wait_for_card(name)
        self.page.run(f"{self.card(name)}.scrollIntoView()")
        self.page.wait_for(f"{self.card(name)}.querySelector('.sc-cover img').naturalWidth > 0", 30)

    def wait_for_covers(self) -> None:
        """Wait until no card loads a thumbnail any more, visible or not."""
        images = "[...document.querySelectorAll('.sc-cover img')]"
        self.page.run(f"{images}.forEach((image) => (image.loading = 'eager'))")
        self.page.wait_for(f"{images}.every((image) => image.complete)", 60)

    def refresh(self) -> None:
        self.page.click(f"{find('.sc-head .pi-refresh')}.parentElement")

    def show(self, name: str) -> None:
        """Open a cache and wait for its first thumbnails."""
        self.wait_for_card(name)
        self.page.click(f"{self.card(name)}?.querySelector('.sc-card-open')")
        self.page.wait_for(f"{TILES}.length && {TILES}.every((tile) => tile.firstChild.naturalWidth > 0)", 30)

    def choose(self, name: str, action: str) -> None:
        """Choose an entry of the menu of a cache in the list."""
        self.wait_for_card(name)
        self.page.click(f"{self.card(name)}.querySelector('.pi-ellipsis-v').parentElement")
        self.page.click(find(".sc-menu-item", action))

    def press_button(self, label: str) -> None:
        self.page.click(find(".sc-button", label))

    def wait_for_text(self, selector: str, text: str) -> None:
        said = f"element.checkVisibility() && element.textContent.includes({json.dumps(text)})"
        self.page.wait_for(f"[...document.querySelectorAll({json.dumps(selector)})].some((element) => {said})", 30)

    def labels(self) -> list[str]:
        return self.page.run(f"{TILES}.map((tile) => tile.getAttribute('aria-label'))")

    def wait_for_labels(self) -> list[str]:
        self.page.wait_for(f"{TILES}.length && {TILES}.every((tile) => tile.dataset.label !== 'loading')", 30)
        return self.labels()

    def search(self, selector: str, text: str) -> None:
        self.page.click(find(selector))
        self.page.run(f"{find(selector)}.select()")
        if text:
            self.page.type(text)
        else:
            self.page.press("Backspace")

    def shot(self, name: str) -> None:
        self.page.screenshot(self.shots / f"{name}.png")
