"""Saving from a node: what it shows, and what it keeps."""

from pathlib import Path

import numpy as np
import pytest

from streamcache.dataset_cache import CacheError, FolderSource, Settings, Transform, merge, open_cache
from streamcache.nodes.library.handles import DatasetPlan, handle_of
from streamcache.nodes.library.saving import Given, save

from ...support import samples


class Shown:
    """A node's progress: stops the run at the first encoded batch, as ComfyUI's Cancel does."""

    def __init__(self, stop: type[BaseException] = AssertionError) -> None:
        self.texts: list[str] = []
        self._stop = stop

    def __call__(self, done: int, total: int | None, text: str = "") -> None:
        self.texts.append(text)
        if text.startswith("Encoding images"):
            raise self._stop("stopped")

    def check(self) -> None: ...

    def show(self, text: str) -> None:
        self.texts.append(text)

    def remark(self, text: str) -> None:
        self.texts.append(text)


class Cancelled(BaseException):
    """As ComfyUI's interrupt."""


@pytest.mark.parametrize(("stop", "words"), [(Cancelled, "Stopped. "), (CacheError, "Failed. ")])
def test_a_node_does_not_keep_the_progress_of_an_encode_that_ended_early(tmp_path, picture, images, texts, stop, words):
    for n in range(3):
        picture(f"set/{n}.png", size=(16, 16), seed=n)
    plan = DatasetPlan((FolderSource(tmp_path / "set"),), images, texts, Settings(Transform((16,), step=8)))
    watch = Shown(stop)
    with pytest.raises(stop):
        save(Given(plan), "cache", tmp_path / "cache", watch)
    assert watch.texts[-1] == words + "Encoded entries are kept; queue again to continue"


def test_a_selection_is_saved_under_another_name_as_often_as_wanted(tmp_path: Path):
    whole = handle_of("whole", samples.write_cache(tmp_path / "whole", 8))
    for chosen in ([0, 1, 2, 3], [7, 5]):
        saved = save(Given(whole.select(np.array(chosen))), "some", tmp_path / "some", Shown())
        samples.assert_holds(saved.handle.open(), chosen)
    for path in (tmp_path / "whole", samples.write_cache(tmp_path / "another", 2)):
        before = len(open_cache(path))
        with pytest.raises(CacheError, match="choose another name"):
            save(Given(whole.select(np.arange(4))), path.name, path, Shown())
        assert len(open_cache(path)) == before


def lists(*numbers: int) -> Given:
    return Given(None, [samples.latent(n) for n in numbers], [samples.conditioning(n) for n in numbers])


def test_lists_replace_only_lists(tmp_path: Path):
    for chosen in ((0, 1, 2), (4, 3)):
        assert len(save(lists(*chosen), "lists", tmp_path / "lists", Shown()).handle.open()) == len(chosen)
    samples.write_cache(tmp_path / "whole", 8)
    save(Given(handle_of("lists", tmp_path / "lists")), "copy", tmp_path / "copy", Shown())
    merge([tmp_path / "lists"], tmp_path / "merged")
    for name, count in (("whole", 8), ("copy", 2), ("merged", 2)):
        with pytest.raises(CacheError, match=f"{name}: exists and is not a cache of lists; choose another name"):
            save(lists(0), name, tmp_path / name, Shown())
        assert len(open_cache(tmp_path / name)) == count


def test_the_cache_of_a_training_can_become_one_of_lists(tmp_path: Path):
    purpose = {"made for": "training my_lora"}
    samples.write_cache(tmp_path / "my_lora", 3, provenance=purpose)
    saved = save(lists(5), "my_lora", tmp_path / "my_lora", Shown(), purpose)
    assert len(saved.handle.open()) == 1
