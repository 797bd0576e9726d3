"""Plans: their reports, and the samples they show before encoding. Rows A7, A12, A16 and A25."""

import gc
import shutil
import sqlite3

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheError, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.transforms import Transform

from ...support.encoders import SMALL


def test_a16_the_cache_alone_is_enough(plan, tmp_path, three, state_dir):
    path = tmp_path / "cache"
    encode(plan(), path)
    cache = open_cache(path)
    before = cache.read_batch([2, 0, 1])
    shutil.rmtree(tmp_path / "set")
    shutil.rmtree(state_dir)
    after = open_cache(path).read_batch([2, 0, 1])
    assert torch.equal(before.latents, after.latents) and before.captions == after.captions
    for one, two in zip(before.conditionings, after.conditionings):
        assert torch.equal(one[0][0], two[0][0]) and torch.equal(one[0][1]["pooled_output"], two[0][1]["pooled_output"])


def test_a_plan_shows_the_samples_that_the_cache_will_have(plan, tmp_path, picture, three):
    picture("set/wide.png", size=(128, 64), caption="one\ntwo")
    made = plan(settings=Settings(Transform((64,), step=8, flip=True)), repeats=3, weight=0.5)
    encode(made, tmp_path / "cache")
    cache = open_cache(tmp_path / "cache")
    planned = plan(settings=made.settings, repeats=3, weight=0.5)
    assert len(planned) == len(cache) == 4
    assert set(planned.fields) == set(cache.fields) and planned.sets == cache.sets
    assert {b: list(rows) for b, rows in planned.buckets().items()} == {b: list(r) for b, r in cache.buckets().items()}
    for name in ("repeats", "weight", "set", "original_size", "crop"):
        assert np.array_equal(planned.column(name), cache.column(name)), name
    assert [planned.source(i) for i in range(4)] == [cache.source(i) for i in range(4)]
    assert planned.captions(3) == cache.captions(3) == ["one", "two"]
    for i, picks in ((0, {"latent": 1}), (2, {"latent": 0})):
        ours, theirs = (d.sample(i, picks) for d in (planned, cache))
        assert torch.equal(ours.latent["samples"], theirs.latent["samples"]) and ours.captions == theirs.captions
    one, two = planned.sample(3, {"conditioning": 1}), cache.sample(3, {"conditioning": 1})
    assert one.caption == two.caption == "two" and one.index == two.index
    assert torch.equal(one.conditioning[0][0], two.conditioning[0][0])
    assert [sample.source for sample in planned] == [sample.source for sample in cache]


def test_invalid_plans_are_refused(plan, tmp_path, three, images, texts):
    with pytest.raises(CacheError, match="no sources"):
        make_plan([], image_encoder=images)
    with pytest.raises(CacheError, match="needs an image encoder"):
        make_plan(FolderSource(tmp_path / "set"))
    with pytest.raises(CacheError, match="give the sources different set names"):
        plan(FolderSource(tmp_path / "set"), FolderSource(tmp_path / "set", prior=True))
    with pytest.raises(CacheError, match="batch_size = 0"):
        encode(plan(settings=Settings(SMALL.transform, batch_size=0)), tmp_path / "cache")


def test_a_random_crop_is_the_same_in_plan_and_cache(plan, tmp_path, picture):
    for n in range(4):
        picture(f"set/{n}.png", size=(400, 64), seed=n)
    settings = Settings(Transform((64,), step=8, max_aspect=1, crop="random"), thumbnail=0)
    planned = [sample.crop for sample in plan(settings=settings)]
    encode(plan(settings=settings), tmp_path / "cache")
    assert planned == [sample.crop for sample in open_cache(tmp_path / "cache")] and len(set(planned)) > 1


def test_images_or_texts_alone_make_a_dataset(plan, tmp_path, three, images, texts):
    source = FolderSource(tmp_path / "set")
    encode(make_plan(source, image_encoder=images, settings=SMALL), tmp_path / "pictures")
    assert open_cache(tmp_path / "pictures").fields == ("latent",)
    encode(make_plan(source, text_encoder=texts, settings=SMALL), tmp_path / "captions")
    assert open_cache(tmp_path / "captions").fields == ("conditioning",)


def test_a_plan_that_is_gone_leaves_no_database_open(plan, picture, monkeypatch):
    picture("set/a.png", caption="a")
    connect, opened = sqlite3.connect, []

    def connecting(*args, **options):
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr("sqlite3.connect", connecting)
    for _ in range(3):
        assert len(plan()) == 1
    gc.collect()
    assert len(opened) == 3
    for database in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            database.execute("SELECT 1")


def test_a_plan_that_is_only_made_opens_no_database(plan, picture, monkeypatch):
    picture("set/a.png")
    monkeypatch.setattr("sqlite3.connect", lambda *args, **options: pytest.fail("a database was opened"))
    plan()
