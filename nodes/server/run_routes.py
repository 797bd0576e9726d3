"""The routes of training runs: which there are, how they do, their pictures; and to stop or delete one."""

from ..host.app import cache_roots, caches_changed, lora_folder, runs_folder
from .http import Picture, Question, Routes
from .live_runs import RUNS
from .runs import RunPlaces, Runs
from .trash import RUN, Root, throw_away

SMOOTHING = 980  # thousandths, as the engine's own


def add(routes: Routes) -> None:
    routes.get("/runs", list_runs)
    routes.get("/run", show_run)
    routes.get("/run/sample", show_sample)
    routes.post("/run/stop", stop_run)
    routes.post("/run/delete", delete_run)


def list_runs(question: Question) -> dict:
    """`client` is the page that asks; only it is told which of its nodes a run is on."""
    client = question.text("client", "")
    question.end()
    return {"runs": _runs().rows(client)}


def show_run(question: Question) -> dict:
    name, client = question.text("name"), question.text("client", "")
    points = question.integer("points", 50, 5000, 1000)
    smoothing = question.integer("smoothing", 0, 999, SMOOTHING)
    question.end()
    return _runs().describe(name, points, smoothing / 1000, client)


def show_sample(question: Question) -> Picture:
    name, file, mtime = question.text("name"), question.text("file"), question.text("mtime", "")
    question.end()
    found = _runs().sample(name, file)
    return Picture(found.data, "image/png", lasting=found.mtime == mtime)


def stop_run(question: Question) -> dict:
    """The engine's own stop: the step is finished, state and LoRA are saved, and the node ends as usual."""
    name = question.text("name")
    question.end()
    _runs().folder(name)
    RUNS.stop(name)
    return {}


def delete_run(question: Question) -> dict:
    """To the trash, as caches. The LoRA that it trained is no part of it and stays."""
    name = question.text("name")
    question.end()
    runs = _runs()
    number = throw_away(Root(runs_folder(), RUN), name, runs.folder(name), lambda: runs.idle_folder(name))
    caches_changed()
    return {"trash": number}


_KEPT: dict[str, Runs] = {}


def _runs() -> Runs:
    """The host's folders may be set after the pack is loaded; curves that were read stay while they are the same."""
    places = RunPlaces(runs_folder(), lora_folder(), tuple(cache_roots()))
    kept = _KEPT.get("runs")
    if kept is None or kept.places != places:
        kept = _KEPT["runs"] = Runs(places, RUNS)
    return kept
