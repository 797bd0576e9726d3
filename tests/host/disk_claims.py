"""Scenario: what nodes read from disk, and class images from the node Image Folder to the model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from streamcache.tests.support.file_calls import file_calls

from .claims import claim, hold
from .pictures import write_picture
from .training_claims import Case, make_case, train


def run(base: Path) -> dict:
    return hold("disk_claims", globals(), make_case("flow"), base)


@contextmanager
def batches(note: Callable[[], None] = lambda: None) -> Iterator[list[list[tuple[torch.Tensor, str]]]]:
    """Latents and captions of the batches that Train LoRA gives to the model; `note` is called with each."""
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    seen, real = [], HostDenoiser.prepare

    def prepare(self: HostDenoiser, batch: Any) -> Any:
        seen.append(list(zip(batch.latents.clone(), batch.captions)))  # the memory of a batch is used again
        note()
        return real(self, batch)

    with mock.patch.object(HostDenoiser, "prepare", prepare):
        yield seen


@claim
def cache_load_reads_the_manifest_once(case: Case, base: Path) -> None:
    from streamcache.nodes.cache import StreamCacheCacheLoad

    with file_calls(case.handle.path) as calls:
        StreamCacheCacheLoad.PREPARE_CLASS_CLONE(None).execute(name=case.name)
    opened = [Path(path).name for call, path in calls if call == "open"]
    assert opened.count("dataset.json") == 1 and len(opened) <= 2, opened  # and the index, for its buckets


@claim
def from_the_second_epoch_on_train_lora_looks_at_no_file(case: Case, base: Path) -> None:
    counts: list[int] = []
    with file_calls(case.handle.path) as calls, batches(lambda: counts.append(len(calls))):
        train(case, "looks", steps=12, batch_size=1, validation_share=0.0)
    assert len(counts) >= 12 and calls, "the cache was opened while calls were recorded"
    late = calls[counts[-8] : counts[-1]]  # four samples, one per step: the last two epochs
    assert late == [], late


@claim
def class_images_are_trained_with_their_prompt_which_is_stored_once(case: Case, base: Path) -> None:
    from streamcache.dataset_cache import open_cache
    from streamcache.nodes.cache import StreamCacheCacheSave
    from streamcache.nodes.encode import StreamCacheEncode
    from streamcache.nodes.host.app.folders import cache_roots
    from streamcache.nodes.image_folder import StreamCacheImageFolder
    from streamcache.nodes.library.handles import handle_of

    for folder, count in (("mine", 3), ("others", 4)):
        (base / "input" / folder).mkdir(parents=True)
        for number in range(count):
            write_picture(base / "input" / folder / f"{number}.png", (64, 64), hash((folder, number)) % 1000)
            if folder == "mine":
                (base / "input" / folder / f"{number}.txt").write_text(f"my cat {number}", encoding="utf-8")
    (mine,) = StreamCacheImageFolder.execute(folder="input/mine").args
    (both,) = StreamCacheImageFolder.execute(folder="input/others", source=mine, prior=True, prompt="a cat").args
    models = {"vae": [case.models.vae], "clip": [case.models.clip]}
    plan = StreamCacheEncode.execute(source=[both], **models, resolution=[64]).args[0]
    StreamCacheCacheSave.PREPARE_CLASS_CLONE(None).execute(name=["cats"], dataset=[plan])
    cache = open_cache(cache_roots()[0] / "cats")
    classes = [n for n in range(len(cache)) if cache[n].set == "prior"]
    assert len(cache) == 7 and [cache[n].caption for n in classes] == ["a cat"] * 4
    assert len({str(cache.keys(n)["conditioning"]) for n in classes}) == 1
    with batches() as seen:
        train(case, "cats", dataset=handle_of("cats", cache_roots()[0] / "cats"), steps=3, batch_size=1)
    assert len(seen) >= 3, "one batch per step; the first may be a rehearsal"
    for rows in seen[-3:]:
        assert sorted(caption == "a cat" for _, caption in rows) == [False, True], rows
        for latent, caption in rows:
            own = [n for n in range(7) if torch.equal(cache[n].realize().latent["samples"][0], latent)]
            assert own and cache[own[0]].caption == caption
