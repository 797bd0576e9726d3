"""A stopped run on its node: a button sets mode and name, so that Run goes on with it instead of starting another."""

import json

import pytest

from streamcache.tests.browser.training_page import TrainingPage
from streamcache.tests.host.server import Server
from streamcache.tests.host.trainings import run_row, until

pytestmark = [pytest.mark.browser, pytest.mark.both_front_ends]
PANEL = "[...document.querySelectorAll('.sc-run-panel')].find((each) => each.offsetParent)"
BUTTON = f"{PANEL}?.querySelector('.sc-go-on')"


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "nodes2"])
def test_a_stopped_run_offers_to_go_on_and_then_run_continues_it(training: TrainingPage, server: Server, vue: bool):
    page, name = training.page, f"left_{'nodes2' if vue else 'classic'}"
    training.close_tab()
    training.set(vue=vue)
    built = training.build(name, mode="new")
    node = f"app.rootGraph.getNodeById({built})"
    training.queue()
    until(lambda: run_row(server, name).get("step", 0) >= 3)
    page.wait_for(f"{PANEL}?.querySelector('[data-state=running]')")
    assert page.run(f"{BUTTON}.hidden"), "not while it trains"
    page.run(f"{PANEL}.querySelector('.sc-stop').click()")
    until(lambda: run_row(server, name).get("status") == "stopped")
    page.wait_for(f"{BUTTON} && !{BUTTON}.hidden")
    assert page.run(f"{BUTTON}.textContent") == f"Resume {name}"
    training.shot(f"go-on-{'nodes2' if vue else 'classic'}")
    page.run(f"{BUTTON}.click()")
    value = f"{node}.widgets.find((widget) => widget.name === %s).value"
    assert page.run(value % json.dumps("mode")) == "resume" and page.run(value % json.dumps("name")) == name
    page.wait_for(f"{BUTTON}.hidden")
    step = run_row(server, name)["step"]
    training.queue()
    until(lambda: run_row(server, name).get("step", 0) > step)
    page.wait_for(f"{PANEL}?.querySelector('[data-state=running]')")
    page.run(f"{PANEL}.querySelector('.sc-stop').click()")
    until(lambda: run_row(server, name).get("status") == "stopped")
