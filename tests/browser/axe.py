"""axe-core, which finds defects that keep people with disabilities from using a page. The script comes with the package
axe-playwright-python."""

import json
from importlib.resources import files
from typing import Any

from .chromium import Page

RUN = """(async (context) => {
  const { violations } = await axe.run(context, {resultTypes: ['violations']});
  const where = ({ html, failureSummary }) => [html.slice(0, 300), failureSummary];
  return violations.map(({ id, help, nodes }) => ({ id, help, nodes: nodes.map(where) }));
})(%s)"""


def violations(page: Page, *selectors: str) -> list[dict[str, Any]]:
    """What axe finds in the elements of these selectors that are on the page, with all its rules."""
    if not page.run("typeof axe === 'object'"):
        page.run((files("axe_playwright_python") / "axe.min.js").read_text("utf-8") + "; true")
    there = [each for each in selectors if page.run(f"Boolean(document.querySelector('{each}'))")]
    assert there, f"none of {selectors} is on the page"
    # The page around is ComfyUI's: its landmarks and headings are not ours to order.
    return page.run(RUN % json.dumps({"include": [[each] for each in there]}))
