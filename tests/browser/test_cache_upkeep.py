"""Maintaining caches in the real front end: clean, rename, copy, verify, delete; and how refusals are shown."""

import json
import secrets
import shutil
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.tests.browser.cache_tab import CacheTab, find
from streamcache.tests.browser.gallery import write_landscapes
from streamcache.tests.host.server import Server

pytestmark = pytest.mark.browser
TELL = "app.api.dispatchEvent(new CustomEvent('%s', {detail: %s}))"
JOB = {"id": "1", "kind": "verify", "name": "large", "to": "", "problems": [], "problem_count": 0, "words": ""}
# The next answer to a path waits for release(), and is empty of caches.
HOLD = """(() => {
  const real = app.api.fetchApi;
  app.api.fetchApi = async (path, ...more) => {
    if (path !== '/streamcache/caches') return real.call(app.api, path, ...more);
    delete app.api.fetchApi;
    const found = await (await real.call(app.api, path, ...more)).json();
    await new Promise((go) => (window.release = go));
    return new Response(JSON.stringify({...found, caches: []}));
  };
})()"""


def remove(folder: Path) -> None:
    """Remove a cache in one step: a request of the page meets all of it or nothing, and cannot leave a lease in it."""
    gone = folder.parent.parent / f"removed-{secrets.token_hex(4)}"
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and ".leases" not in file.parts)


def test_cleaning_removes_exactly_what_its_preview_shows(tab: CacheTab, root: Path, server: Server):
    folder = root / "wasteful"
    for count in (6, 2):  # the second save leaves entries and a generation behind
        with CacheWriter(folder) as writer:
            for number in range(count):
                latent = torch.full((1, 4, 32, 32), float(number))
                writer.add(latent={"samples": latent}, caption=f"picture {number}")
    open_cache(folder)  # a reader was here, so readers can be seen
    left = folder / ".dataset.json.99.tmp"
    left.write_bytes(bytes(12_345))
    plan = server.client.get("/streamcache/cache/clean?name=wasteful")
    removals = {each["category"]: each for each in plan["removals"]}
    assert removals["unused"]["count"] >= 4 and removals["debris"]["bytes"] >= 12_345
    before = folder_bytes(folder)
    tab.refresh()
    tab.choose("wasteful", "Clean…")
    tab.wait_for_text("dialog h2", "Clean wasteful")
    tab.wait_for_text("dialog", "entries not used by any sample")
    tab.shot("clean")
    assert folder_bytes(folder) == before
    tab.page.click("document.querySelector('dialog input[name=unused]')")
    tab.page.click("document.querySelector('dialog input[name=debris]')")
    chosen = tab.page.run("[...document.querySelectorAll('dialog input:checked')].map((box) => box.name)")
    assert "unused" in chosen and "debris" not in chosen
    tab.press_button("Remove")
    tab.wait_for_text(".sc-notices", "wasteful: freed")
    assert before - folder_bytes(folder) == sum(removals[name]["bytes"] for name in chosen)
    assert left.exists()
    assert len(open_cache(folder)) == 2


def test_rename_duplicate_export_delete_undo_and_trash(tab: CacheTab, root: Path):
    write_landscapes(root / "first", 3, seed=5)
    tab.refresh()
    tab.choose("first", "Rename…")
    rename(tab, "shelf/dunes", "Rename")
    tab.wait_for_text("dialog .sc-notice", "shelf/dunes")  # the name is taken: shown in the dialog, which stays open
    tab.page.run("void 0")
    assert any("status of 4" in error for error in tab.page.errors)
    tab.page.errors.clear()
    rename(tab, "second", "Rename")
    tab.wait_for_card("second")
    tab.choose("second", "Duplicate…")
    rename(tab, "third", "Duplicate")
    tab.wait_for_card("third")
    tab.choose("second", "Export…")
    rename(tab, "taken_along", "Export")
    tab.wait_for_text(".sc-job", "second exported to output/streamcache_export/taken_along.")
    assert len(open_cache(root.parent / "streamcache_export" / "taken_along")) == 3
    tab.choose("third", "Move to the trash")
    tab.wait_for_card("third", there=False)
    tab.shot("undo")
    tab.press_button("Undo")
    tab.wait_for_card("third")
    for name in ("second", "third"):
        tab.choose(name, "Move to the trash")
        tab.wait_for_card(name, there=False)
    assert not (root / "second").exists()
    # Tests of other files may have left something in the trash of this server, so its number is not known.
    tab.page.click(
        '[...document.querySelectorAll(".sc-button")].find((e) => e.textContent.trim().startsWith("Trash ("))'
    )
    tab.wait_for_card("second")
    tab.shot("trash")
    tab.page.click(f"{tab.card('second')}.querySelector('.sc-button')")
    tab.wait_for_card("second", there=False)
    assert len(open_cache(root / "second")) == 3
    tab.press_button("Empty")
    tab.press_button("Delete permanently")
    tab.wait_for_text(".sc-empty", "The trash is empty.")
    assert not (root / "third").exists()


def test_an_opened_cache_stays_open_when_it_is_renamed(tab: CacheTab, root: Path):
    write_landscapes(root / "opened", 3, seed=8)
    tab.refresh()
    tab.show("opened")
    tab.page.click("document.querySelector('.sc-head .pi-ellipsis-v').parentElement")
    tab.page.click(find(".sc-menu-item", "Rename…"))
    rename(tab, "opened_again", "Rename")
    tab.wait_for_text(".sc-notices", "opened renamed to opened_again.")
    tab.page.wait_for("document.querySelector('[data-cache=opened_again] .sc-tile')", 30)
    tab.open()
    remove(root / "opened_again")
    tab.refresh()
    tab.wait_for_card("opened_again", there=False)


def rename(tab: CacheTab, to: str, button: str) -> None:
    tab.search("dialog input", to)
    tab.press_button(button)


def test_verify_reports_damage_and_repair_asks_twice_before_it_drops_much(tab: CacheTab, root: Path):
    write_landscapes(root / "damaged", 3, seed=6)
    tab.refresh()
    tab.choose("damaged", "Verify")
    tab.wait_for_text(".sc-job", "damaged: no problems found")
    shard = next((root / "damaged" / "shards").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-100] ^= 255
    shard.write_bytes(data)
    tab.choose("damaged", "Verify")
    problem = "document.querySelector('.sc-job.bad .sc-problems li')"
    tab.page.wait_for(problem, 30)
    tab.shot("verify")
    tab.press_button("Repair…")
    tab.wait_for_text("dialog", "1 sample is damaged. Repair drops it:")
    tab.wait_for_text("dialog li", "its stored bytes are damaged")
    tab.press_button("Repair")
    tab.wait_for_text(".sc-job.bad", "damaged is unchanged: repair would drop 1 of 3 samples, more than 5%.")
    assert len(open_cache(root / "damaged")) == 3
    tab.press_button("Repair anyway…")
    tab.wait_for_text("dialog li", ".png")  # the sample by its name
    tab.shot("repair")
    assert tab.page.run("document.querySelector('dialog [type=submit]').disabled")
    tab.page.click("document.querySelector('dialog input[name=accept]')")
    tab.press_button("Repair")
    tab.wait_for_text(".sc-job.good", "damaged repaired: 1 damaged sample dropped.")
    assert len(open_cache(root / "damaged")) == 2
    bad = "[...document.querySelectorAll('.sc-job.bad')].filter((job) => job.textContent.includes('damaged'))"
    assert tab.page.run(f"{bad}.length") == 0, "what was found before is no longer true"
    for shard in (root / "damaged" / "shards").glob("*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:-50])
    tab.choose("damaged", "Verify")
    tab.page.wait_for(problem, 30)
    remove(root / "damaged")
    tab.reopen()
    tab.page.wait_for(problem, 30)
    assert tab.page.run("document.querySelectorAll('.sc-job').length") == 1, "what went well was read"
    tab.page.click("document.querySelector('.sc-job .pi-times').parentElement")
    tab.reopen()
    tab.page.run("app.api.fetchApi('/streamcache/jobs').then(() => new Promise((go) => setTimeout(go, 300)))")
    assert tab.page.run("document.querySelectorAll('.sc-job').length") == 0, "what was closed stays closed"
    tab.page.run("void 0")  # the cover of a damaged cache cannot be shown
    tab.page.errors[:] = [error for error in tab.page.errors if "/cache/thumbnail" not in error]


def test_a_running_job_is_shown_until_it_is_done(tab: CacheTab):
    bar = "document.querySelector('.sc-job [role=progressbar]')"
    tab.page.run(TELL % ("streamcache.job", json.dumps({**JOB, "state": "running", "done": 3, "total": 12})))
    tab.page.wait_for(f"{bar}?.getAttribute('aria-valuenow') === '25' && {bar}.ariaLabel === 'Verifying large'")
    tab.page.run(TELL % ("streamcache.job", json.dumps({**JOB, "state": "done", "done": 12, "total": 12})))
    tab.page.run(
        TELL % ("streamcache.job", json.dumps({**JOB, "state": "running", "done": 0, "total": 0}))
    )  # late news
    tab.wait_for_text(".sc-job", "large: no problems found")
    assert not tab.page.run(f"Boolean({bar})")


def test_jobs_that_ended_while_disconnected_are_shown_as_ended(tab: CacheTab):
    for number in ("ended", "lost"):
        job = {**JOB, "id": number, "name": number, "state": "running", "done": 3, "total": 12}
        tab.page.run(TELL % ("streamcache.job", json.dumps(job)))
    bars = "document.querySelectorAll('.sc-job [role=progressbar]').length"
    tab.page.wait_for(f"{bars} === 2")
    jobs = json.dumps({"jobs": [{**JOB, "id": "ended", "name": "ended", "state": "done"}]})
    tab.page.run(
        "(() => { const real = app.api.fetchApi; app.api.fetchApi = (path, ...more) => path === '/streamcache/jobs' "
        f"? Promise.resolve(new Response({json.dumps(jobs)})) : real.call(app.api, path, ...more) }})()"
    )
    try:
        tab.page.run(TELL % ("reconnected", "null"))
        tab.wait_for_text(".sc-job", "ended: no problems found")
        tab.wait_for_text(".sc-job.bad", "The job for lost failed.")  # the server that did it is gone
        assert tab.page.run(bars) == 0
    finally:
        tab.page.run("delete app.api.fetchApi")
        tab.page.run("document.querySelectorAll('.sc-job .pi-times').forEach((sign) => sign.parentElement.click())")


def test_a_late_response_does_not_replace_a_newer_one(tab: CacheTab, root: Path):
    tab.wait_for_card("landscapes")
    tab.page.run(HOLD)
    tab.refresh()
    tab.page.wait_for("window.release")
    write_landscapes(root / "newer", 2, seed=9)
    tab.refresh()
    tab.wait_for_card("newer")
    tab.page.run("window.release(); new Promise((go) => setTimeout(go, 300))")
    assert tab.page.run(f"Boolean({tab.card('newer')})")
    remove(root / "newer")
    tab.refresh()
    tab.wait_for_card("newer", there=False)


def test_a_cache_in_use_is_marked_and_cannot_be_deleted(tab: CacheTab, root: Path):
    reader = open_cache(root / "landscapes")
    tab.refresh()
    tab.wait_for_text(".sc-card[data-name=landscapes]", "in use")
    tab.page.click(f"{tab.card('landscapes')}.querySelector('.pi-ellipsis-v').parentElement")
    disabled = "[...document.querySelectorAll('.sc-menu-item:disabled')].map((item) => item.textContent).join()"
    tab.page.wait_for(f"{disabled} === 'Rename…,Move to the trash'")
    tab.page.press("Escape")
    del reader
    tab.refresh()
    tab.page.wait_for(f"!{tab.card('landscapes')}.textContent.includes('in use')")


def test_a_refusal_is_shown_as_a_message(tab: CacheTab, root: Path):
    write_landscapes(root / "vanishing", 3, seed=7)
    (root / "unreadable").mkdir()
    (root / "unreadable" / "dataset.json").write_text("{")
    tab.refresh()
    tab.wait_for_text(".sc-card[data-name=unreadable]", "is not JSON")
    tab.wait_for_card("vanishing")
    tab.wait_for_cover("vanishing")
    with tab.page.held("**/streamcache/caches"):  # the page refreshes its list also by itself; here it is outdated
        tab.refresh()  # an earlier response does not count any more
        remove(root / "vanishing")
        remove(root / "unreadable")
        tab.choose("vanishing", "Verify")
        tab.page.wait_for("!document.querySelector('.sc-menu-item')")
    tab.wait_for_text(".sc-notices [role=alert]", "vanishing")
    assert not tab.page.run("document.querySelector('.p-toast-message')?.textContent.includes('vanishing')")
    tab.shot("refusal")
    tab.page.run("void 0")
    assert all("status of 404" in error for error in tab.page.errors)
    tab.page.errors.clear()


def test_the_list_is_shown_when_the_open_cache_is_removed(tab: CacheTab, root: Path):
    write_landscapes(root / "going", 3, seed=8)
    tab.refresh()
    tab.show("going")
    remove(root / "going")
    tab.search(".sc-samples input", "anything")
    tab.wait_for_text(".sc-notices", "going no longer exists.")
    tab.page.wait_for("document.querySelector('.sc-cards') && !document.querySelector('[data-cache]')")
    assert tab.page.run("document.querySelectorAll('.sc-notice').length") == 1
    assert not tab.page.run("Boolean(document.querySelector('.p-toast-message'))")
    tab.page.run("void 0")
    assert all("status of 404" in error for error in tab.page.errors)
    tab.page.errors.clear()


def test_the_connection_error_disappears_when_the_server_is_back(tab: CacheTab):
    tab.wait_for_card("landscapes")
    tab.page.run("app.api.fetchApi = () => Promise.reject(new TypeError('gone'))")
    tab.refresh()
    tab.wait_for_text(".sc-notices", "The server does not respond")
    tab.page.run("delete app.api.fetchApi; app.api.dispatchEvent(new CustomEvent('reconnected'))")
    tab.page.wait_for("!document.querySelector('.sc-notices').textContent", 10)


def test_an_unreadable_cache_shows_only_its_problem(tab: CacheTab, root: Path):
    (root / "torn").mkdir()
    (root / "torn" / "dataset.json").write_text("{")
    tab.refresh()
    tab.wait_for_card("torn")
    tab.page.click(f"{tab.card('torn')}.querySelector('.sc-card-open')")
    tab.wait_for_text("[data-cache=torn] .sc-notice", "is not JSON")
    view = "document.querySelector('[data-cache=torn]')"
    assert not tab.page.run(f"{view}.querySelector('.pi-plus-circle').checkVisibility()")
    assert "0 samples" not in tab.page.run(f"{view}.textContent")
    tab.open()
    remove(root / "torn")
    tab.refresh()
    tab.wait_for_card("torn", there=False)


def test_untrusted_texts_are_shown_as_text(tab: CacheTab, root: Path):
    evil = "<img src=x onerror='window.broken = true'>"
    with CacheWriter(root / "stranger", provenance={"encode": {"encoders": {"image": evil}, evil: [evil]}}) as writer:
        writer.add(latent={"samples": torch.zeros(1, 4, 8, 8)}, caption=[evil, evil + "2"], source=evil)
    tab.refresh()
    tab.wait_for_text(".sc-card", f"VAE {evil}")
    tab.show("stranger")
    tab.page.click("document.querySelector('.sc-tile')")
    tab.wait_for_text(".sc-sample-text", evil)
    tab.page.press("Escape")
    tab.page.click("document.querySelector('#sc-tab-about')")
    tab.wait_for_text(".sc-about", evil)
    assert tab.page.run("window.broken === undefined && !document.querySelector('img[src=x]')")
    tab.page.click("document.querySelector('#sc-tab-samples')")
    remove(root / "stranger")
    tab.open()
    tab.refresh()
    tab.wait_for_card("stranger", there=False)
