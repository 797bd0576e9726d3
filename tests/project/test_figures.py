"""The benchmark figures in the documents come from docs/figures.json.

python tests/project/test_figures.py     writes the tables into the documents again
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("comfyui_training.md", "readahead.md"))]
BLOCK = re.compile(r"(<!-- figures: ([\w, ]+) -->\n).*?(<!-- end of figures -->)", re.S)


def render(text: str) -> str:
    """The document with the tables that its markers name."""
    tables = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))["tables"]

    def fill(block: re.Match) -> str:
        rows = [row for name in block[2].split(", ") for row in tables[name]]
        lines = ["| measured | result |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]
        return block[1] + "\n".join(lines) + "\n" + block[3]

    return BLOCK.sub(fill, text)


def test_documents_show_the_figures_of_the_last_benchmark():
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert BLOCK.search(text), f"{document.name} has no figures"
        assert render(text) == text, f"{document.name}: run python tests/project/test_figures.py"


def test_no_document_states_a_ratio_outside_the_tables():
    for document in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        prose = BLOCK.sub("", document.read_text(encoding="utf-8"))
        assert re.findall(r"\d\.\d+ ?×(?! ?\d)", prose) == [], f"{document.name}: move the figure to docs/figures.json"


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(render(document.read_text(encoding="utf-8")), encoding="utf-8")
