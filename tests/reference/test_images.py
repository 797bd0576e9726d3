"""Made-up images."""

from streamcache.reference import images


def test_images_depend_only_on_their_seed_and_come_in_three_sizes():
    first, again, other = (list(images.shapes(30, seed)) for seed in (1, 1, 2))
    assert [p.caption for p in first] == [p.caption for p in again] != [p.caption for p in other]
    assert all(a.image.tobytes() == b.image.tobytes() for a, b in zip(first, again, strict=True))
    assert {p.image.size for p in first} == set(images.SIZES)
