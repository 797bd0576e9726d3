"""The rows of the index."""

from streamcache.dataset_cache import CacheWriter, SampleFacts
from streamcache.dataset_cache.format.manifest import read_manifest

from ...support.samples import bits


def test_a_million_rows_would_take_about_150_bytes_each(tmp_path):
    """The size of an index grows with its samples by the bytes of their rows, not by text or layouts."""
    sizes = []
    for count in (100, 1100):
        with CacheWriter(tmp_path / f"{count}") as w:
            w.put("latent", {"samples": bits((1, 4, 2, 2))}, "latent")
            w.put("text", [[bits((1, 2, 4)), {"pooled_output": bits((1, 4), seed=1)}]], "conditioning")
            for _ in range(count):
                w.sample({"latent": ["latent"], "conditioning": ["text"]}, SampleFacts(captions="a", source="b"))
        sizes.append(read_manifest(tmp_path / f"{count}").index_bytes)
    assert (sizes[1] - sizes[0]) / 1000 < 150
