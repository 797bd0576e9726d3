"""Sample images during training."""

import pytest
from PIL import Image

from streamcache.errors import TrainError
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.loop import TrainHooks
from streamcache.lora_train.run import read_run_json
from streamcache.lora_train.samples import draw_history, with_sample_images

from ..support.small_parts import make_dataset, run_training


def test_samples_are_drawn_at_intervals_with_the_same_seed(tmp_path) -> None:
    heard = []
    hooks = TrainHooks(samples=lambda step, pictures: heard.append((step, len(pictures))))
    settings = {"sample_every": 2, "sample_captions": ("caption 3", "caption 5"), "sample_steps": 2}
    run_training(tmp_path, make_dataset(tmp_path / "set"), hooks=hooks, **settings)
    assert heard == [(0, 2), (2, 2), (4, 2), (6, 2)]
    folder = tmp_path / "runs/test/samples"
    assert len(list(folder.glob("*.png"))) == 8 and (tmp_path / "runs/test/samples.png").exists()
    first, last = (folder / f"step-{step:08}-0.png" for step in (0, 6))
    assert first.read_bytes() != last.read_bytes()
    overview = draw_history(folder, settings["sample_captions"])
    assert Image.open(tmp_path / "runs/test/samples.png").tobytes() == overview.tobytes()
    assert overview.height > draw_history(folder).height  # by the captions


def test_i3_a_run_records_the_text_of_each_prompt_of_its_sample_images(tmp_path) -> None:
    settings = {"sample_every": 6, "sample_captions": ("caption 3", "caption 5"), "sample_steps": 1}
    run_training(tmp_path, make_dataset(tmp_path / "set"), **settings)
    assert read_run_json(tmp_path / "runs/test")["prompts"] == ["caption 3", "caption 5"]


def test_a_sample_caption_that_is_not_cached_is_refused(tmp_path) -> None:
    with pytest.raises(TrainError, match='sample_captions: "a dragon" is not a caption of the dataset'):
        run_training(tmp_path, make_dataset(tmp_path / "set"), sample_every=1, sample_captions=("a dragon",))


@pytest.mark.parametrize(
    ("settings", "every"),
    [
        ({"steps": 800}, 100),
        ({"steps": 3}, 1),
        ({"steps": 800, "sample_every": 7}, 7),
        ({"steps": 800, "epochs": 5}, 200),
    ],
)
def test_sample_images_have_a_default_interval(settings: dict, every: int):
    assert with_sample_images(TrainConfig(**settings)).sample_every == every
