"""Fixtures of the tests of encoding: a plan of folders, and a run that encodes them."""

import pytest

from streamcache.dataset_cache import EncodeReport, FolderSource, Plan, encode, make_plan

from ..support.encoders import SMALL
from ..support.fixtures import settle


@pytest.fixture
def plan(tmp_path, images, texts):
    """A plan of folders below tmp_path: plan("set") or plan(source, …)."""

    def make(*sources, settings=SMALL, images=images, texts=texts, **options) -> Plan:
        made = [FolderSource(tmp_path / s, **options) if isinstance(s, str) else s for s in sources or ["set"]]
        return make_plan(made, image_encoder=images, text_encoder=texts, settings=settings)

    return make


@pytest.fixture
def run(plan, tmp_path, images, texts):
    """Encode folders below tmp_path to one cache and count: run("set") -> report; images.count, texts.count."""

    def go(*sources, settings=SMALL, to="cache", images=images, texts=texts, **options) -> EncodeReport:
        images.reset()
        texts.reset()
        return encode(plan(*sources, settings=settings, images=images, texts=texts, **options), tmp_path / to)

    return go


@pytest.fixture
def three(picture):
    for n in range(3):
        picture(f"set/{n}.png", size=(64, 48), seed=n, caption=f"caption {n}")
    settle()
