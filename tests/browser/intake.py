"""Real files that are dropped onto the page or chosen in it, and the dialog in which they are added."""

import json
from pathlib import Path

from streamcache.tests.browser.cache_tab import CacheTab, find
from streamcache.tests.dataset_cache.intake.zips import picture

DIALOG = "document.querySelector('.sc-dialog[open]')"
FIELD = f"{DIALOG}?.querySelector('input')"
ADDED = "document.querySelector('.sc-job[data-job=add][data-state=done]')"


def write_files(folder: Path, count: int, captions: bool = True, start: int = 0, stem: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        (folder / f"{stem}{number:05}.png").write_bytes(picture(number * 37 % 65536, size=(48, 32)))
        if captions:
            (folder / f"{stem}{number:05}.txt").write_text(f"picture {number}")
    return folder


def accept(tab: CacheTab, name: str = "") -> None:
    """Fill in the dialog and press Add."""
    tab.page.wait_for(FIELD)
    if name:
        change = f"field.value = {json.dumps(name)}; field.dispatchEvent(new Event('input'))"
        tab.page.run(f"((field) => {{ {change} }})({FIELD})")
    tab.page.click(find(".sc-dialog .sc-button", "Add"))


def wait_until_added(tab: CacheTab, text: str) -> None:
    tab.page.wait_for(f"{ADDED}?.textContent.includes({json.dumps(text)})", 120)


def dismiss(tab: CacheTab) -> None:
    """Close the lines of all jobs."""
    tab.page.run("document.querySelectorAll('.sc-jobs .pi-times').forEach((each) => each.parentElement.click())")
    tab.page.wait_for("document.querySelectorAll('.sc-job').length === 0")


def row(name: str) -> str:
    return f"document.querySelector('.sc-folder[data-name={json.dumps(name)}]')"
