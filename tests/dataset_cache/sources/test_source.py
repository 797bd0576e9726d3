"""A kind of source needs nothing but its own class: the pipeline does not ask what kind it is."""

from dataclasses import dataclass, field

import torch

from streamcache.dataset_cache import Settings, Source, Transform, encode, make_plan, open_cache
from streamcache.dataset_cache.sources.list_source import ListedImages, image_in_memory
from streamcache.dataset_cache.sources.source import Item


@dataclass(frozen=True, kw_only=True)
class Shades(Source):
    """Made-up images, one per shade of grey."""

    shades: tuple[float, ...] = field(kw_only=False)

    def list(self, trust: bool = False, allow_missing: bool = False) -> ListedImages:
        items = []
        for shade in self.shades:
            image = image_in_memory(torch.full((64, 64, 3), shade), "shade")
            items.append(Item(self, f"shade-{shade}", image, (f"grey {shade}",)))
        return ListedImages(items)


def test_another_kind_of_source_is_encoded_and_recognized_as_unchanged(tmp_path, images, texts):
    def run(*shades: float):
        settings = Settings(Transform((64,), step=8))
        plan = make_plan(Shades(shades, weight=0.5), image_encoder=images, text_encoder=texts, settings=settings)
        return encode(plan, tmp_path / "cache")

    run(0.25, 0.5)
    cache = open_cache(tmp_path / "cache")
    assert [sample.caption for sample in cache] == ["grey 0.25", "grey 0.5"] and cache[0].weight == 0.5
    assert cache.provenance["encode"]["sources"][0]["shades"] == [0.25, 0.5]
    assert run(0.25, 0.5).unchanged
    assert run(0.25, 0.5, 0.75).encoded == {"latent": 1, "conditioning": 1, "thumbnail": 1}
