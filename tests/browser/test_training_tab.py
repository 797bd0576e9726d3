"""The Training tab: how it handles events and responses in any order, and how it is used."""

import json

import pytest
from PIL import Image

from streamcache.lora_train.samples import sample_file_name
from streamcache.tests.browser.training_page import CARD, NODE, PANEL, RUNS, TrainingPage, write_run
from streamcache.tests.host.server import Server
from streamcache.tests.host.trainings import until

pytestmark = pytest.mark.browser
# Questions for a run are counted; the answer to the first is there, but waits for release().
HOLD = """(() => {
  const real = app.api.fetchApi;
  window.questions = 0;
  app.api.fetchApi = async (path, ...more) => {
    const answer = await real.call(app.api, path, ...more);
    if (path.startsWith('/streamcache/run?') && ++window.questions === 1) {
      await new Promise((go) => (window.release = go));
    }
    return answer;
  };
})()"""
LET_GO = "window.release(); delete app.api.fetchApi; new Promise((go) => setTimeout(go, 300))"
RELOAD_RUNS = "import('/extensions/streamcache/training/runs.js').then(({store}) => store.load())"
PICTURE = f"{PANEL}.querySelector('.sc-picture img')"


def test_a_restarted_run_shows_nothing_of_the_previous_one(training: TrainingPage, server: Server):
    write_run(server, "again", [0.5] * 30)
    training.open_tab()
    training.send_event(run="again", status="done", live=False)
    until(lambda: len(training.kept("again", "loss") or []) == 30)
    training.page.run(HOLD)
    training.send_event(run="again", status="done", live=False)  # it ended, and loads its result
    training.page.wait_for("window.release", 20)
    write_run(server, "again", [0.4, 0.3])
    training.send_event(run="again", status="running", live=True, step=0)
    until(lambda: len(training.kept("again", "loss") or []) == 2, 20)
    training.page.run(LET_GO)
    training.send_event(run="again", status="running", live=True, step=3, points=[[3, 0.2]])
    assert training.kept("again", "loss") == [[1, 0.4], [2, 0.3], [3, 0.2]]
    training.send_event(run="again", status="done", live=False)


def test_a_long_curve_is_loaded_once(training: TrainingPage, server: Server):
    write_run(server, "long", [0.5])
    training.open_tab()
    training.send_event(run="long", status="running", live=True, step=1)
    until(lambda: training.kept("long", "loss"))
    training.page.run(HOLD)
    for first in range(2, 5000, 1250):
        training.send_event(
            run="long", status="running", live=True, points=[[first + each, 0.5] for each in range(1250)]
        )
    training.page.wait_for("window.release", 20)
    training.page.run("new Promise((go) => setTimeout(go, 300))")
    assert training.page.run("window.questions") == 1
    training.page.run(LET_GO)
    training.send_event(run="long", status="done", live=False)


def test_a_lost_connection_leaves_no_gap_in_a_curve(training: TrainingPage, server: Server):
    write_run(server, "unheard", [0.5] * 4)
    training.open_tab()
    training.send_event(run="unheard", status="done", live=False)
    until(lambda: len(training.kept("unheard", "loss") or []) == 4)
    write_run(server, "unheard", [0.4] * 3)
    training.page.run("app.api.dispatchEvent(new CustomEvent('reconnected'))")
    until(lambda: training.kept("unheard", "loss") == [[1, 0.4], [2, 0.4], [3, 0.4]], 20)


def test_the_status_of_a_run_follows_the_server(training: TrainingPage, server: Server):
    write_run(server, "held", [0.5] * 3)
    training.open_tab()
    training.refresh()
    training.choose("held")
    until(lambda: len(training.kept("held", "loss") or []) == 3)
    training.send_event(run="held", status="running", live=True, step=2)
    stop = f"{CARD}.querySelector('.sc-stop').checkVisibility()"
    training.page.wait_for(f"{CARD}?.innerText.includes('held') && {stop}", 10)
    training.send_event(run="held", status="running", live=False, step=3)  # its end was not saved
    training.page.wait_for(f"!{stop}", 10)


def test_an_overwritten_run_shows_its_own_sample_images(training: TrainingPage, server: Server):
    file = sample_file_name(2, 0)
    path = write_run(server, "painted", [0.5] * 3) / file
    Image.new("RGB", (8, 8), "red").save(path)
    training.open_tab()
    training.refresh()
    training.choose("painted")
    training.page.wait_for(f"{PICTURE}?.naturalWidth === 8", 20)
    Image.new("RGB", (16, 16), "blue").save(path)
    facts = {"run": "painted", "step": 2, "prompt": 0, "file": file, "mtime": str(path.stat().st_mtime_ns)}
    training.page.run(f"app.api.dispatchEvent(new CustomEvent('streamcache.sample', {{detail: {json.dumps(facts)}}}))")
    training.page.wait_for(f"{PICTURE}?.naturalWidth === 16", 10)
    assert training.page.run(f"{PANEL}.querySelectorAll('.sc-picture').length") == 1


def test_the_clicked_image_is_enlarged(training: TrainingPage, server: Server):
    folder = write_run(server, "drawn", [0.5] * 3)
    for step in (1, 2):
        Image.new("RGB", (8, 8), "red").save(folder / sample_file_name(step, 0))
    training.open_tab()
    training.refresh()
    training.choose("drawn")
    training.page.wait_for(f"{PICTURE}?.alt === 'Sample 1 at step 2'", 20)
    training.send_event(run="drawn", status="done", live=False)  # everything is loaded again, unchanged
    training.page.run("new Promise((go) => setTimeout(go, 500))")
    training.page.click(f"{PICTURE}.parentElement")
    training.page.wait_for("document.querySelector('.sc-large figcaption')?.textContent === 'step 2'", 10)
    training.page.press("Escape")
    training.page.wait_for("!document.querySelector('.sc-large')", 10)


def test_undo_works_during_training(training: TrainingPage, server: Server):
    page = training.page
    for name in ("thrown", "busy"):
        write_run(server, name, [0.5] * 3)
    training.open_tab()
    training.send_event(run="busy", status="running", live=True, step=1)
    page.wait_for(f"{RUNS}.includes('thrown')")
    notice = f"{PANEL}.querySelector('.sc-notice')"
    for press in ("button.plain", "button"):
        page.click("document.querySelector('[data-run=thrown] .sc-sign')")
        page.wait_for(f"document.activeElement === {notice}?.querySelector('button')", 20)
        page.run(f"window.noticed = {notice}")
        for step in range(2, 6):
            training.send_event(run="busy", status="running", live=True, step=step, points=[[step, 0.5]])
            page.run("new Promise((go) => setTimeout(go, 60))")
        assert page.run(f"window.noticed === {notice}"), "the button that the user is about to press stays"
        page.click(f"{notice}.querySelector('{press}')")
        page.wait_for(f"!{notice}")
        if press == "button.plain":  # closed: it stays where it is
            assert "thrown" not in page.run(RUNS)
            write_run(server, "thrown", [0.5] * 3)
            training.refresh()
        page.wait_for(f"{RUNS}.includes('thrown')")
    training.send_event(run="busy", status="done", live=False)


def test_a_key_opens_the_tab_and_moves_the_focus_into_it(training: TrainingPage):
    training.close_tab()
    training.reload()  # the first time, when nothing of the tab is loaded yet
    assert not training.page.run(f"Boolean({PANEL})")
    training.page.run("document.activeElement.blur()")
    training.page.press("T", shift=True)
    training.page.wait_for(PANEL)
    training.page.wait_for(f"document.activeElement.closest('.sc-panel')?.contains({PANEL})", 10)


def test_runs_are_compared_by_the_settings_that_differ(training: TrainingPage, server: Server):
    same = {"optimizer": "AdamW", "group_rates": {}}
    write_run(server, "fine", [0.5] * 3, rank=16, learning_rate=1e-4, name="fine", targets="", **same)
    write_run(server, "coarse", [0.5] * 3, rank=4, learning_rate=0.002, name="coarse", targets="attention", **same)
    training.open_tab()
    training.refresh()
    training.choose("fine", "coarse")
    rows = (
        "[...document.querySelectorAll('.sc-table tr')].map((row) => row.innerText.split('\\t').map((t) => t.trim()))"
    )
    training.page.wait_for(f"{rows}.length === 7", 20)
    heads, *lines = training.page.run(rows)
    fine = heads.index("fine")
    shown = {name: (cells[fine - 1], cells[2 - fine]) for name, *cells in lines[3:]}
    assert shown == {"Rank": ("16", "4"), "Learning rate": ("1e-4", "0.002"), "Targets": ("–", "attention")}
    training.shot("settings")


@pytest.mark.parametrize("vue", [True, False], ids=["nodes_2", "classic"])
def test_a_node_shows_the_last_run_of_its_name_after_a_reload(training: TrainingPage, server: Server, vue: bool):
    page = training.page
    training.close_tab()
    training.set(vue=vue)
    write_run(server, "finished", [0.5, 0.4, 0.3])
    node = training.build("finished")
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.run(RELOAD_RUNS)
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.wait_for(f"{NODE}?.innerText.includes('finished')", 20)
    until(lambda: training.drawn(NODE) == 3, 20)
    tall = f"app.rootGraph.getNodeById({node}).size[1]"
    kept = f"app.rootGraph.serialize().nodes.find((each) => each.id == {node}).size[1]"
    assert page.run(f"{tall} - {kept}") > 100, "a workflow keeps no room for the panel"
    page.run(f"app.rootGraph.getNodeById({node}).widgets.find((each) => each.name === 'name').value = 'unheard_of'")
    without = page.run("JSON.stringify(app.rootGraph.serialize())")
    page.run(f"app.loadGraphData({without}, true, true, null)")
    page.run("new Promise((go) => setTimeout(go, 500))")
    assert page.run(NODE) is None
    if not vue:  # Nodes 2.0 measures its widgets itself
        assert page.run(f"{tall} - app.rootGraph.getNodeById({node}).computeSize()[1]") < 30


def test_a_node_shows_its_error_and_nothing_of_the_previous_run(training: TrainingPage, server: Server):
    page = training.page
    training.close_tab()
    write_run(server, "before", [0.5, 0.4])
    node = training.build("before")
    workflow = page.run("JSON.stringify(app.rootGraph.serialize())")
    page.run(RELOAD_RUNS)
    page.run(f"app.loadGraphData({workflow}, true, true, null)")
    page.wait_for(f"{NODE}?.innerText.includes('before')", 20)
    training.send_event(run="before", status="stopped", live=False, step=2, steps=4)
    said = f"{NODE}.querySelector('.sc-said')?.textContent"
    dispatch = "app.api.dispatchEvent(new CustomEvent('%s', {detail: %s}))"
    failure = {"node_id": str(node), "node_type": "StreamCacheTrain", "exception_message": "rank is 8, not 4\n"}
    failure |= {"exception_type": "ValueError", "traceback": [], "prompt_id": ""}
    page.run(dispatch % ("execution_error", json.dumps(failure)))
    page.wait_for(f"{said} === 'rank is 8, not 4'", 10)
    page.run(dispatch % ("executing", json.dumps(str(node))))
    page.wait_for(f"{said} === ''", 10)
    page.run(dispatch % ("executing", "null"))


def test_a_run_is_shown_alone_by_its_name_and_keeps_its_color(training: TrainingPage, server: Server):
    page = training.page
    for name in ("one", "two", "three"):
        write_run(server, name, [0.5, 0.4])
    training.open_tab()
    training.refresh()
    training.choose("one", "two", "three")
    color = "document.querySelector('[data-run=%s] .sc-swatch').style.getPropertyValue('--sc-series')"
    page.wait_for(f"{color % 'three'} !== 'transparent'", 10)
    before = [page.run(color % name) for name in ("one", "two", "three")]
    assert len(set(before)) == 3
    training.choose("two", "three")
    page.wait_for(f"{color % 'one'} === 'transparent'", 10)
    assert [page.run(color % name) for name in ("two", "three")] == before[1:]
    page.run("document.querySelector('[data-run=three] .sc-run-text').click()")
    page.wait_for(f"{CARD}.querySelector('h3').textContent === 'three'", 10)
    ticked = "[...document.querySelectorAll('.sc-run:has(:checked)')].map((run) => run.dataset.run).join()"
    assert page.run(ticked) == "three" and page.run(color % "three") == before[2]


def test_a_run_that_failed_before_its_first_step_shows_no_chart(training: TrainingPage, server: Server):
    page = training.page
    folder = write_run(server, "stillborn", []).parent
    (folder / "run.json").write_text(json.dumps({"status": "failed", "problem": "no such optimizer"}))
    training.open_tab()
    training.refresh()
    training.choose("stillborn")
    page.wait_for(f"{CARD}.innerText.includes('no such optimizer')", 20)
    shown = training.text(CARD)
    assert "step 0" not in shown and "–" not in shown and "Dataset" not in shown
    assert not page.run(f"[...{PANEL}.querySelectorAll('.sc-chart')].some((chart) => chart.checkVisibility())")
    page.run("document.querySelector('[data-run=stillborn] .sc-sign').click()")
    page.wait_for(
        f"{PANEL}.querySelector('.sc-notice.sc-notice:not(.bad)')?.innerText.includes('moved to the trash')", 20
    )
    assert "LoRA" not in page.run(f"{PANEL}.querySelector('.sc-notice:not(.bad)').innerText")


def test_remarks_on_the_dataset_are_shown_with_its_run(training: TrainingPage, server: Server):
    folder = write_run(server, "noted", [0.5, 0.4]).parent
    described = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**described, "notes": "Skipped: 1 of the files"}))
    training.open_tab()
    training.refresh()
    training.choose("noted")
    training.page.wait_for(f"{CARD}.innerText.includes('Skipped: 1 of the files')", 20)


def test_the_report_of_a_run_opens_in_a_sandboxed_frame(training: TrainingPage, server: Server):
    folder = write_run(server, "reported", [1.0, 0.5]).parent
    write_run(server, "bare", [1.0, 0.5])
    (folder / "report.html").write_text("<p>report</p><script>document.title = 'ran'</script>")
    training.open_tab()
    training.refresh()
    link = f"{CARD}.querySelector('.sc-report')"
    training.choose("bare")
    training.page.wait_for(f"{CARD}.innerText.includes('bare') && {link}.hidden", 20)
    training.choose("reported")
    training.page.wait_for(f"{CARD}.innerText.includes('reported') && !{link}.hidden", 20)
    training.page.click(link)
    frame = "document.querySelector('.sc-report-frame')"
    training.page.wait_for(f"{frame}?.srcdoc.includes('<p>report</p>')", 20)
    training.shot("report")
    assert training.page.run(f"{frame}.sandbox.value === '' && {frame}.hasAttribute('sandbox')"), "no scripts run in it"
    training.page.press("Escape")
    training.page.wait_for(f"!{frame}")
    training.page.errors.clear()  # the console reports the script that was not run


def test_neighboring_ticks_have_different_labels(training: TrainingPage):
    labels = "import('/extensions/streamcache/lib/ticks.js').then(({tickLabels}) => tickLabels(%s))"
    assert training.page.run(labels % "[0.0001, 0.000105, 0.00011]") == ["1e-4", "1.05e-4", "1.1e-4"]
    assert training.page.run(labels % "[0, 0.00005, 0.0001]") == ["0", "5e-5", "1e-4"]
    assert training.page.run(labels % "[0.1234, 0.1235]") == ["0.1234", "0.1235"]


def test_a_long_name_leaves_room_for_the_stop_button(training: TrainingPage, server: Server):
    page, name = training.page, "a_name_as_long_as_names_can_be_" * 3
    write_run(server, name, [0.5, 0.4])
    training.open_tab()
    training.refresh()
    training.choose(name)
    until(lambda: len(training.kept(name, "loss") or []) == 2)
    training.send_event(run=name, status="running", live=True, step=1, steps=2)
    page.wait_for(f"{CARD}.querySelector('.sc-stop').checkVisibility()", 10)
    size = f"(({{width, height}}) => [width, height])({CARD}.querySelector('%s').getBoundingClientRect())"
    width, height = page.run(size % "h3")
    assert width > 100 and height < 60
    assert page.run(size % ".sc-stop")[1] < 40 and page.run(f"{CARD}.scrollWidth <= {CARD}.clientWidth")
    training.shot("long_name")
    training.send_event(run=name, status="done", live=False)
