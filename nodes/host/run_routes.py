"""The routes of training runs."""

from .answers import Question, Routes
from .lora_folders import runs_folder


def add(routes: Routes) -> None:
    routes.get("/runs", list_runs)


def list_runs(question: Question) -> dict:
    question.end()
    folder = runs_folder()
    return {"runs": [{"name": each.name} for each in sorted(folder.iterdir())] if folder.is_dir() else []}
