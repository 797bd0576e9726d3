"""docs/behaviours.md lists, for each behaviour, the tests that prove it: those whose names begin with its id.

python tests/project/test_behaviours.py     writes the names of the tests into the table again
"""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "behaviours.md"
ROW = re.compile(r"^\| ([A-GI-K]\d+) \| (.*?) \|(?: (.*?) \|)?$", re.M)
TEST = re.compile(r"^\s*(?:async )?def (test_([a-gi-k]\d+)_\w+)", re.M)


def rows_of_tests() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, row in TEST.findall(path.read_text(encoding="utf-8")):
            found[row.upper()].append(f"`{path.relative_to(ROOT / 'tests').as_posix()}::{name}`")
    return found


def render(text: str) -> str:
    tests = rows_of_tests()
    return ROW.sub(lambda row: f"| {row[1]} | {row[2]} | {'<br>'.join(tests[row[1]])} |", text)


def test_every_behaviour_lists_the_tests_that_prove_it():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert render(text) == text, "run: python tests/project/test_behaviours.py"
    assert all(row[2] for row in ROW.findall(text)), "a behaviour has no test"


def test_every_test_of_a_behaviour_is_in_the_table():
    listed = {row[0] for row in ROW.findall(DOCUMENT.read_text(encoding="utf-8"))}
    assert set(rows_of_tests()) <= listed


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
