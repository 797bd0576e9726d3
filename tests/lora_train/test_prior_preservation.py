"""Prior preservation from images on disk to the model: the nine configurations of D6."""

import itertools
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.plan import Plan, make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.transforms import Transform
from streamcache.errors import TrainError
from streamcache.reference.denoiser import ReferenceDenoiser
from streamcache.reference.encoders import ReferenceImageEncoder, ReferenceTextEncoder, encode_caption
from streamcache.reference.model import ModelSize, ReferenceModel

from ..support.small_parts import run_training

CLASS_PROMPT = "a cat"


class CountingTexts(ReferenceTextEncoder):
    def __init__(self) -> None:
        self.items: list[str] = []

    def encode(self, items: list[str]) -> list:
        self.items += items
        return super().encode(items)


class Watched(ReferenceDenoiser):
    """Writes down which caption every latent came with."""

    def __init__(self) -> None:
        super().__init__(ReferenceModel(ModelSize(width=32, depth=1, heads=2)))
        self.rows: list[tuple[torch.Tensor, str]] = []

    def prepare(self, batch):
        prepared = super().prepare(batch)
        for row, caption in enumerate(batch.captions):
            tokens = encode_caption(caption)[0][0][0]
            assert torch.equal(prepared.conditioning.tokens[row, : len(tokens)], tokens)
            self.rows.append((batch.latents[row].clone(), caption))
        return prepared


def make_cats(folder: Path, picture, texts: CountingTexts, custom: bool, prior: bool) -> Plan:
    """Six images of my cat in two sizes, and eight of other cats."""
    for number in range(6):
        caption = f"my cat, picture {number}" if custom else None
        picture(f"mine/{number}.png", (64, 64) if number % 2 else (96, 48), number, caption)
    sources = [FolderSource(folder / "mine", set="mine", prompt=None if custom else "my cat")]
    if prior:
        for number in range(100, 108):
            picture(f"others/{number}.png", (64, 64) if number % 2 else (96, 48), number)
        sources.append(FolderSource(folder / "others", set="others", prior=True, prompt=CLASS_PROMPT, weight=0.5))
    settings = Settings(Transform((64,), step=8), thumbnail=0)
    return make_plan(sources, image_encoder=ReferenceImageEncoder(), text_encoder=texts, settings=settings)


CONFIGURATIONS = [*itertools.product([False, True], [False, True], [False, True], [1]), (True, True, True, 3)]


@pytest.mark.parametrize(("custom", "prior", "cached", "epochs"), CONFIGURATIONS)
def test_d6_every_image_is_trained_with_its_own_prompt_which_is_encoded_once(
    tmp_path: Path, picture, custom: bool, prior: bool, cached: bool, epochs: int
) -> None:
    texts, denoiser = CountingTexts(), Watched()
    plan = make_cats(tmp_path, picture, texts, custom, prior)
    if cached:
        encode(plan, tmp_path / "set")
        texts.items.clear()
        plan = make_cats(tmp_path, picture, texts, custom, prior)
    else:
        # Not encoded yet: training says so, and it is saved first.
        with pytest.raises(TrainError, match="save it as a cache first"):
            run_training(tmp_path, plan, denoiser)
        assert not texts.items
    encode(plan, tmp_path / "set")
    dataset = open_cache(tmp_path / "set")
    before = len(texts.items)
    assert texts.items.count(CLASS_PROMPT) == (prior and not cached)
    run_training(tmp_path, dataset, denoiser, epochs=epochs, batch_size=2)
    assert len(texts.items) == before, "an encoder ran while training"

    latents = {index: dataset.sample(index).realize().latent["samples"][0] for index in range(len(dataset))}
    seen = [
        next(i for i, own in latents.items() if own.shape == x.shape and torch.equal(own, x)) for x, _ in denoiser.rows
    ]
    assert [dataset.captions(index)[0] for index in seen] == [caption for _, caption in denoiser.rows]
    mine = [index for index in seen if dataset.sample(index).set == "mine"]
    assert sorted(mine) == sorted(
        [index for index in range(len(dataset)) if dataset.sample(index).set == "mine"] * epochs
    )
    assert len(seen) - len(mine) == (len(mine) if prior else 0)
    assert all(dataset.captions(index)[0] == CLASS_PROMPT for index in seen if dataset.sample(index).set == "others")


def test_b7_a_plan_is_refused_with_the_reason_before_any_encoder_runs(tmp_path: Path, picture) -> None:
    texts = CountingTexts()
    plan = make_cats(tmp_path, picture, texts, custom=True, prior=False)
    with pytest.raises(TrainError, match="encoders do not run during training"):
        run_training(tmp_path, plan, Watched())
    assert not texts.items
