"""The charts of runs: zoom, outliers, axes, colors, forms, a large view, and files to save."""

import csv
import io
import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamcache.tests.browser.axe import violations
from streamcache.tests.browser.finished_runs import EPOCH, SECONDS, falling, write_finished
from streamcache.tests.browser.training_page import PANEL, TrainingPage
from streamcache.tests.host.server import Server
from streamcache.tests.host.trainings import until

pytestmark = [pytest.mark.browser, pytest.mark.both_front_ends]
STEPS = 400
CHART = "document.querySelector('.sc-training .sc-chart')"
NORM = "[...document.querySelectorAll('.sc-training .sc-chart')].at(-1)"
TICKS = "[...%s.querySelectorAll('text:not(.side)')].map((each) => each.textContent)"
SIDE = "[...%s.querySelectorAll('text.side')].map((each) => parseFloat(each.textContent))"
RESET = f"{PANEL}.querySelector('.pi-search-minus').parentElement"
BOX = f"{PANEL}.querySelector('input[name=%s]')"
SPOKEN = f"{CHART}.querySelector('[aria-live]').textContent"
PALETTES = pytest.mark.parametrize("palette", ["dark", "light"])


def soon(true: Callable[[], Any]) -> Any:
    return until(true, 30)


def show(training: TrainingPage, *names: str) -> None:
    training.open_tab()
    training.refresh()
    training.choose(*names)
    for name in names:
        soon(lambda name=name: training.kept(name, "loss"))
    training.page.wait_for(f"{CHART}.querySelector('path.series')", 30)


def last_tick(training: TrainingPage) -> float:
    return float(training.page.run(TICKS % CHART)[-1].replace(",", ""))


def test_one_spike_does_not_flatten_the_chart(training: TrainingPage, server: Server):
    page = training.page
    write_finished(server, "spiky", falling(STEPS, spike=200))
    show(training, "spiky")
    assert max(page.run(SIDE % CHART)) <= 1, "the scale is that of the other values"
    assert page.run(f"{CHART}.querySelectorAll('.outliers').length") >= 1, "and the spike has a mark"
    training.shot("spike")
    page.click(BOX % "clip")
    soon(lambda: max(page.run(SIDE % CHART)) >= 500)
    assert page.run(f"{CHART}.querySelectorAll('.outliers').length") == 0
    page.click(BOX % "clip")


def test_a_chart_is_zoomed_by_drag_wheel_and_keys_and_reset(training: TrainingPage, server: Server):
    page = training.page
    write_finished(server, "zoomed", falling(STEPS))
    show(training, "zoomed")
    whole = page.run(TICKS % CHART)
    assert last_tick(training) == STEPS and page.run(f"{RESET}.hidden")
    page.sweep(CHART, 0.3, 0.5)
    soon(lambda: last_tick(training) < STEPS * 0.6)
    assert page.run(TICKS % NORM) == page.run(TICKS % CHART), "all charts show the same part"
    page.click(RESET)
    soon(lambda: page.run(TICKS % CHART) == whole)
    page.turn_wheel(CHART, -400, at=0.2)
    soon(lambda: last_tick(training) < STEPS)
    page.run("new Promise((go) => setTimeout(go, 400))")
    for _ in range(3):
        page.turn_wheel(CHART, 400)
    soon(lambda: page.run(TICKS % CHART) == whole)
    # The last turn may scroll the page: the chart must not leave the pointer, which would take its mark along.
    page.move_mouse(1, 1)
    page.run(f"{CHART}.focus()")
    page.press("Home", "+", "+")
    soon(lambda: last_tick(training) < STEPS / 2)
    page.press("End")
    assert page.run(SPOKEN).startswith(f"step {STEPS}, "), "the part that is shown moves along"
    assert last_tick(training) >= STEPS * 0.9
    page.press("0")
    soon(lambda: page.run(TICKS % CHART) == whole)


def test_a_zoomed_long_curve_is_loaded_with_every_step(training: TrainingPage, server: Server):
    page = training.page
    write_finished(server, "long_zoomed", falling(20_000))
    show(training, "long_zoomed")
    assert len(training.kept("long_zoomed", "loss")) <= 1200
    count = f"{CHART}.querySelector('path.series.faint').getAttribute('d').split('L').length"
    page.sweep(CHART, 0.5, 0.53)
    coarse = page.run(count)
    soon(lambda: page.run(count) > 5 * coarse)
    assert page.run(count) > 400
    page.click(RESET)


def test_the_axis_shows_steps_epochs_or_time(training: TrainingPage, server: Server):
    page = training.page
    write_finished(server, "timed", falling(STEPS))
    show(training, "timed")
    choose = f"((list) => {{list.value = '%s'; list.dispatchEvent(new Event('change'))}})({BOX})".replace(
        "input", "select"
    )
    page.run(choose % ("epoch", "axis"))
    soon(lambda: last_tick(training) == STEPS / EPOCH)
    page.run(f"{CHART}.focus()")
    page.press("Home")
    assert page.run(SPOKEN).startswith("epoch 0.01, ")
    page.run(choose % ("time", "axis"))
    seconds = int(STEPS * SECONDS)
    soon(lambda: ":" in page.run(TICKS % CHART)[-1])
    page.press("End")
    assert page.run(SPOKEN).startswith(f"after {seconds // 60}:{seconds % 60:02}, ")
    page.press("Escape")
    page.run(choose % ("step", "axis"))
    soon(lambda: last_tick(training) == STEPS)


def test_validation_differs_from_a_second_run_by_its_form(training: TrainingPage, server: Server):
    page = training.page
    for seed, name in enumerate(("form_a", "form_b")):
        write_finished(server, name, falling(STEPS, seed))
    show(training, "form_a")
    colors = f"[...new Set([...{CHART}.querySelectorAll('path.series')].map((each) => each.style.cssText))].length"
    assert page.run(f"{CHART}.querySelectorAll('path.series.faint').length") == 1, "raw is shown for one run"
    assert page.run(colors) == 1, "one run has one color"
    show(training, "form_a", "form_b")
    page.wait_for(f"{CHART}.querySelectorAll('.diamonds').length === 2")
    assert page.run(colors) == 2
    assert page.run(f"{CHART}.querySelectorAll('path.series.dashed').length") == 2
    assert page.run(f"{CHART}.querySelectorAll('path.series.faint').length") == 0, "raw is off when comparing"
    training.shot("two_runs")
    page.click(BOX % "raw")
    page.wait_for(f"{CHART}.querySelectorAll('path.series.faint').length === 2")
    page.click(BOX % "raw")


# Machado, Oliveira and Fernandes (2009): how people without one kind of cones see linear RGB.
SEEN = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "all": np.eye(3).tolist(),
}
LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
LMS += [[0.0883024619, 0.2817188376, 0.6299787005]]
LAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099]]
LAB += [[0.0259040371, 0.7827717662, -0.8086757660]]


def linear(color: str) -> np.ndarray:
    """Of a CSS color such as rgb(1, 2, 3)."""
    value = np.array([float(part) for part in re.findall(r"[\d.]+", color)[:3]]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def oklab(color: np.ndarray) -> np.ndarray:
    return np.array(LAB) @ np.cbrt(np.array(LMS) @ color)


@PALETTES
def test_twelve_runs_have_colors_that_everybody_can_tell_apart(training: TrainingPage, server: Server, palette: str):
    page = training.page
    names = [f"colored_{number:02}" for number in range(13)]
    for number, name in enumerate(names):
        write_finished(server, name, [each + 0.05 * number for each in falling(60, number)])
    training.set(palette=palette)
    show(training, *names)
    lines = f"[...{CHART}.querySelectorAll('path.series:not(.dashed)')]"
    page.wait_for(f"{lines}.length === 13", 20)
    page.run("new Promise((go) => setTimeout(go, 700))")
    drawn = page.run(f"{lines}.map((each) => [getComputedStyle(each).stroke, getComputedStyle(each).strokeDasharray])")
    training.shot(f"thirteen_runs_{palette}")
    assert len({tuple(each) for each in drawn}) == 13 and len({color for color, _ in drawn}) == 12
    back = linear(page.run(f"getComputedStyle({PANEL}.closest('.sc-panel')).backgroundColor"))
    colors = [linear(color) for color in dict(drawn)]
    luminance = [float(np.dot([0.2126, 0.7152, 0.0722], each)) + 0.05 for each in (back, *colors)]
    for each in luminance[1:]:
        assert max(each, luminance[0]) / min(each, luminance[0]) >= 3, "WCAG: graphics"
    for matrix in SEEN.values():
        seen = [oklab(np.clip(np.array(matrix) @ each, 0, 1)) for each in colors]
        assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 0.085
    training.set(palette="dark")


@PALETTES
def test_the_large_view_has_the_same_charts_and_no_defect(training: TrainingPage, server: Server, palette: str):
    page = training.page
    write_finished(server, "enlarged", falling(STEPS))
    training.set(palette=palette)
    show(training, "enlarged")
    page.sweep(CHART, 0.2, 0.6)
    soon(lambda: last_tick(training) < STEPS * 0.8)
    page.run("new Promise((go) => setTimeout(go, 700))")
    assert violations(page, ".sc-panel") == []
    page.click(f"{PANEL}.querySelector('.sc-chart-tools .pi-window-maximize').parentElement")
    large = "document.querySelector('dialog.sc-charts .sc-chart')"
    page.wait_for(f"{large}?.querySelector('path.series')", 30)
    assert int(page.run(TICKS % large)[-1]) < STEPS * 0.8, "the zoom is taken over"
    assert page.run(f"{large}.clientHeight") > page.run(f"{CHART}.clientHeight")
    page.run("new Promise((go) => setTimeout(go, 700))")
    training.shot(f"large_chart_{palette}")
    assert violations(page, "dialog.sc") == []
    page.press("Escape")
    page.wait_for("!document.querySelector('dialog.sc-charts')", 30)
    page.click(RESET)
    training.set(palette="dark")


def test_charts_are_saved_as_csv_and_png(training: TrainingPage, server: Server):
    page = training.page
    for seed, name in enumerate(("kept_a", "kept_b")):
        write_finished(server, name, falling(2000 if seed else STEPS, seed))
    entries = "[...document.querySelectorAll('.sc-menu-item')]"

    def saved(kind: str) -> tuple[str, bytes]:
        page.click(f"{PANEL}.querySelector('.sc-chart-tools .pi-download').parentElement")
        page.wait_for(f"{entries}.length === 2")
        return page.saved_file(f"{entries}.find((each) => each.textContent.includes('{kind}'))")

    show(training, "kept_a", "kept_b")
    name, data = saved("CSV")
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert name == "runs.csv" and [row["run"] for row in rows].count("kept_b") == 2000, "every step, not thinned"
    first = next(row for row in rows if row["run"] == "kept_a")
    assert float(first["loss"]) == pytest.approx(falling(STEPS)[0]) and float(first["seconds"]) == SECONDS
    show(training, "kept_a")
    name, data = saved("CSV")
    assert name == "kept_a.csv" and len(list(csv.DictReader(io.StringIO(data.decode())))) == STEPS
    name, data = saved("PNG")
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    (training.folder / "training_saved.png").write_bytes(data)
    color = linear(page.run(f"getComputedStyle({CHART}.querySelector('path.series')).stroke"))
    drawn = np.array(picture)[::2, ::2].reshape(-1, 3)
    near = [np.abs(linear(f"rgb{tuple(pixel.tolist())}") - color).max() < 0.02 for pixel in np.unique(drawn, axis=0)]
    assert name == "kept_a.png" and picture.width > 600 and any(near), "with the colors of the page"
