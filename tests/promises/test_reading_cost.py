"""What reading costs: no tensor's byte to open, a batch's bytes to read it, no memory to have read, in any process."""

import gc
import random
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheWriter, SampleFacts, open_cache

from ..support.processes import needs_fork, read_in_forks
from ..support.samples import BUCKETS, anonymous_bytes, bits, conditioning, counted_reads, latent, same, write_cache

needs_smaps = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")


@needs_smaps
def test_c2_a_hundred_thousand_samples_open_with_little_memory(tmp_path):
    count = 100_000
    with CacheWriter(tmp_path / "set") as w:
        for n in range(500):
            w.put(f"latent {n}", latent(n, BUCKETS[n % 3]), "latent")
            w.put(f"text {n}", conditioning(n), "conditioning")
        for i in range(count):
            w.sample(
                {"latent": [f"latent {i % 500}"], "conditioning": [f"text {i % 499}"]},
                SampleFacts(f"caption {i}", f"{i}.png"),
            )
    gc.collect()
    before = anonymous_bytes()
    with counted_reads() as sizes:
        cache = open_cache(tmp_path / "set")
        found = cache[count - 1]
        facts = (
            len(cache),
            found.caption,
            found.latent["samples"].shape,
            len(cache.buckets()),
            sum(cache.column("repeats")),
        )
    assert facts == (count, "caption 99999", BUCKETS[499 % 3], 3, count)
    assert anonymous_bytes() - before < 50 << 20
    assert sum(sizes) < 1 << 20, "the index is mapped, not read"
    assert same(found.latent, latent(499, BUCKETS[499 % 3]))


@pytest.mark.parametrize("buffered", [False, True])
def test_c6_a_step_reads_the_bytes_of_its_batch(tmp_path, platform, buffered):
    """All sizes are multiples of 64 here, so there is no padding."""
    with CacheWriter(tmp_path / "set") as w:
        for i in range(40):
            w.add(
                latent={"samples": bits((1, 4, 8, 8), seed=i)},
                conditioning=[[bits((1, 4, 16), seed=100 + i), {"w": i}]],
            )
    cache = open_cache(tmp_path / "set")
    buffers = cache.buffers(4) if buffered else None
    cache.read_batch([0, 1, 2, 3], buffers=buffers)
    draw = random.Random(1)
    for _ in range(20):
        chosen = draw.sample(range(40), 4)
        with counted_reads() as sizes:
            batch = cache.read_batch(chosen, buffers=buffers)
            assert len(batch.conditionings) == len(batch.captions) == len(batch.latents) == 4
        assert sum(sizes) == 4 * (4 * 8 * 8 * 2 + 4 * 16 * 2)
    with counted_reads() as sizes:
        cache.read_batch([5], fields=["latent"])
    assert sum(sizes) == 512
    with counted_reads() as sizes:
        cache[7].conditioning[0][0].sum()
    assert sum(sizes) == 128


@needs_smaps
@pytest.mark.parametrize("buffered", [False, True])
def test_c7_a_thousand_steps_do_not_increase_memory(tmp_path, buffered):
    with CacheWriter(tmp_path / "set") as w:
        for i in range(64):
            w.add(latent={"samples": bits((1, 4, 32, 32), seed=i)}, conditioning=conditioning(i, 40), caption=f"{i}")
    cache = open_cache(tmp_path / "set")
    buffers = cache.buffers(4) if buffered else None
    draw = random.Random(1)

    def step() -> None:
        batch = cache.read_batch(draw.sample(range(64), 4), buffers=buffers)
        assert len(batch.conditionings) == 4 and batch.latents.shape[0] == 4
        cache[draw.randrange(64)].latent["samples"].sum()

    for _ in range(100):
        step()
    gc.collect()
    before = anonymous_bytes()
    for _ in range(1000):
        step()
    gc.collect()
    # 1,000 batches of 33 kB would be 33 MB, and the samples as much again as a third.
    assert anonymous_bytes() - before < 2 << 20


@needs_fork
def test_a_cache_is_read_after_a_fork_in_every_process(tmp_path, nursery):
    notes = nursery.start(read_in_forks, write_cache(tmp_path / "set", 12), 3, 5).wait()
    found = [what for what, *_ in notes]
    assert found.count("child") == 3 and found.count("parent") == 1 and "failed" not in found, notes
    facts = {what: value for what, value in notes if what in ("parent", "left")}
    assert facts["left"] == [facts["parent"]], "every child held a lease of its own, and only the parent's is left"
