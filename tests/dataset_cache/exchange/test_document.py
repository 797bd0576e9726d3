"""The examples in docs/interchange.md run as they are."""

import re
from pathlib import Path

import pytest

import streamcache
from streamcache.dataset_cache import export_as, open_cache

from ...support.samples import same
from .exports import write_plain_cache

DOCUMENT = Path(streamcache.__file__).parent / "docs" / "interchange.md"


@pytest.mark.parametrize(("form", "package"), [("webdataset", "webdataset"), ("parquet", "pyarrow")])
def test_f9_the_examples_in_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, package: str):
    pytest.importorskip(package)
    write_plain_cache(tmp_path / "my_set", 1)
    export_as(tmp_path / "my_set", tmp_path / "out", form)
    examples = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.S | re.M)
    (code,) = [example for example in examples if f"import {package}" in example]
    monkeypatch.chdir(tmp_path)
    values: dict = {}
    exec(code, values)
    assert same(values["latent"], open_cache("my_set")[0].realize().latent["samples"])
