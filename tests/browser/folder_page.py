"""One folder of images in the Datasets tab, used with clicks and keys."""

import json
from pathlib import Path

from streamcache.tests.browser.cache_tab import TILES, CacheTab, find
from streamcache.tests.browser.intake import row

DIALOG = "document.querySelector('.sc-image[open]')"
FIELD = f"{DIALOG}?.querySelector('textarea')"
GRID = "document.querySelector('.sc-curate .sc-grid')"
COUNT = "document.querySelector('.sc-curate .sc-countline [role=status]')?.textContent"
BAR = "document.querySelector('.sc-selection')"
SAVED = "document.querySelector('.sc-image [role=status]')?.textContent === 'Saved.'"
TWO_FRAMES = "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
PREVIEW = "document.querySelector('.sc-preview')"


class FolderPage:
    def __init__(self, tab: CacheTab) -> None:
        self.tab, self.page = tab, tab.page

    def open(self, name: str) -> None:
        """Open a folder from the list, and wait for its pictures."""
        self.page.wait_for(f"{row(name)} || document.querySelector('.sc-folders .sc-more button')")
        if not self.page.run(f"Boolean({row(name)})"):
            self.page.click("document.querySelector('.sc-folders .sc-more button')")
        self.page.click(f"{row(name)}?.querySelector('.sc-folder-open')")
        self.wait_for_pictures()

    def wait_for_pictures(self) -> None:
        self.page.wait_for(f"{GRID} && {TILES}.length && {TILES}.every((tile) => tile.firstChild.naturalWidth > 0)", 60)

    def wait_for_count(self, text: str) -> None:
        self.page.wait_for(f"{COUNT} === {json.dumps(text)}", 60)

    def tile(self, name: str) -> str:
        """The tile of an image, by the name with which its label begins."""
        start = json.dumps(f"{name}: ")
        return f"{TILES}.find((tile) => tile.getAttribute('aria-label').startsWith({start}))"

    def show(self, name: str) -> None:
        """Scroll until an image has a tile. There are elements only for visible ones."""
        for share in (None, 0, 0.25, 0.5, 0.75, 1):
            if share is not None:
                self.page.run(f"{GRID}.scrollTop = {GRID}.scrollHeight * {share}")
                self.page.run(TWO_FRAMES)
            if self.page.run(f"Boolean({self.tile(name)})"):
                return
        raise AssertionError(f"{name} is not in the grid")

    def wait_for_label(self, name: str, text: str) -> None:
        self.show(name)
        self.page.wait_for(f"{self.tile(name)}?.getAttribute('aria-label').includes({json.dumps(text)})", 60)

    def edit(self, name: str) -> None:
        """Open the dialog of an image."""
        self.show(name)
        self.page.click(self.tile(name))
        self.page.wait_for(f"{FIELD} && {DIALOG}.querySelector('h2').title === {json.dumps(name)}")

    def write(self, text: str) -> None:
        """Type a caption in place of the one in the field."""
        self.page.click(FIELD)
        self.page.press("Control+a")
        self.page.type(text)

    def save(self) -> None:
        self.page.press("Control+Enter")
        self.page.wait_for(SAVED, 60)

    def close(self) -> None:
        self.page.press("Escape")
        self.page.wait_for(f"!{DIALOG}", 60)

    def select(self, *names: str) -> None:
        for name in names:
            self.show(name)
            self.page.run(f"{self.tile(name)}.querySelector('.sc-tile-check').click()")
            self.page.wait_for(f"{self.tile(name)}.getAttribute('aria-selected') === 'true'")

    def act(self, key: str) -> None:
        """Press a button of the bar of the selection."""
        self.page.click(f"{BAR}.querySelector('[data-act={key}]')")

    def fill(self, name: str, text: str) -> None:
        """Fill in a field of the dialog for many captions."""
        self.page.click(f"document.querySelector('[data-edit={name}]')")
        self.page.type(text)

    def wait_for_preview(self, text: str) -> None:
        self.page.wait_for(f"{PREVIEW}?.textContent.includes({json.dumps(text)})", 60)

    def apply(self, said: str) -> None:
        self.page.click(find(".sc-dialog .sc-button.primary", "Apply"))
        self.wait_for_notice(said)

    def wait_for_notice(self, text: str) -> None:
        self.tab.wait_for_text(".sc-notices .sc-notice", text)

    def update_cache(self) -> str:
        """Press Update cache and wait until it has ended; returns what it says."""
        self.page.run("document.querySelectorAll('.sc-jobs .pi-times').forEach((each) => each.parentElement.click())")
        self.page.wait_for("document.querySelectorAll('.sc-job').length === 0")
        self.page.click("document.querySelector('.sc-update')")
        ended = "document.querySelector('.sc-job[data-job=update]:not([data-state=running])')"
        self.page.wait_for(ended, 900)
        return self.page.run(f"{ended}.textContent")


def read_captions(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))}
