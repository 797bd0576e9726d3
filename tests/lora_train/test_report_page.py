"""report.html of a run."""

import pytest
from PIL import Image

from streamcache.lora_train.report_page import Section, render_page


def test_the_page_is_one_file_and_escapes_all_text() -> None:
    page = render_page(
        "Run <1>", "", {"steps": "20"}, [Section("Loss", Image.new("RGB", (4, 4)), table={"a<b": "<script>"})]
    )
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert page.count("data:image/png;base64,") == 1 and "http" not in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "on"),
        (False, "off"),
        (None, "–"),
        ("", "–"),
        ([], "–"),
        ({}, "–"),
        (("a cat", "a dog"), "a cat, a dog"),
        ({"attn": 1e-5, "ff": 0.0}, "attn = 1e-05, ff = 0"),
        (0.0001, "0.0001"),
        (1000, "1000"),
        ("<b>", "&lt;b&gt;"),
    ],
)
def test_settings_are_shown_as_people_write_them(value: object, text: str):
    page = render_page("run", "", {}, [Section("Settings", table={"name": value})])
    assert f"<td>name</td><td>{text}</td>" in page
