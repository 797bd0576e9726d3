"""The demo: it runs the whole job, and never empties a folder that is not its own."""

from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file

from streamcache.dataset_cache import open_cache
from streamcache.reference.tour import main


def test_the_demo_runs_the_whole_job(tmp_path: Path, capsys) -> None:
    out = tmp_path / "demo"
    assert main(["--out", str(out), "--quick"]) == 0
    printed = capsys.readouterr().out
    for step in (
        "Draw",
        "Encode",
        "Again    0 entries",
        "Open",
        "never saw",
        "waiting for data",
        "Save",
        "no problems",
    ):
        assert step in printed
    assert [line.split()[0] for line in printed.splitlines()[-2:]] == ["Done", "Skipped"]
    assert len(open_cache(out / "cache")) == 16 and load_file(out / "zogglewump.safetensors")
    for name in ("before_after", "loss", "samples", "contact_sheet", "buckets", "data_wait"):
        with Image.open(out / f"{name}.png") as picture:
            assert picture.width > 200
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 6 and "waiting for data" in page


def test_a_second_demo_replaces_the_first_but_no_other_folder(tmp_path: Path, capsys) -> None:
    assert [main(["--out", str(tmp_path / "demo"), "--quick"]) for _ in range(2)] == [0, 0]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    assert main(["--out", str(tmp_path / "photos"), "--quick"]) == 1
    assert (tmp_path / "photos" / "a.png").exists() and "not from a demo" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_teaches_the_model_its_creature(tmp_path: Path) -> None:
    import numpy as np

    assert main(["--out", str(tmp_path / "demo")]) == 0
    with Image.open(tmp_path / "demo" / "before_after.png") as picture:
        pixels = np.asarray(picture.convert("RGB"), float)
    # The creature is purple: red and blue well above green. The base model draws none of it, the LoRA does.
    purple = (pixels[..., 2] - pixels[..., 1] > 60) & (pixels[..., 0] - pixels[..., 1] > 40)
    top, bottom = np.array_split(purple, 2)
    assert bottom.sum() > 5 * max(top.sum(), 100)
