"""What reaches a training step: each sample with its own text, in every epoch, with its partner if it has one."""

import itertools
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, SampleFacts, open_cache, realize
from streamcache.errors import TrainError
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.run.folder import open_run
from streamcache.lora_train.session import open_session

from ..support.small_parts import SCALE, SHAPES, SmallDenoiser, latent_of, make_dataset, run_training, words_of


class Watched(SmallDenoiser):
    def predict(self, x_t, t, conditioning):
        out = super().predict(x_t, t, conditioning)
        self.calls[-1]["x_t"] = x_t.detach().clone()
        return out

    def rows(self) -> list[tuple[torch.Tensor, int]]:
        """(latent as given to the model, number of its text) for every row seen."""
        return [(x, int(n)) for call in self.calls for x, n in zip(call["x_t"], call["text"][:, 0, 0])]


def test_d1_every_latent_is_paired_with_its_own_text_over_five_reshuffled_epochs(tmp_path) -> None:
    denoiser = Watched()
    run_training(tmp_path, make_dataset(tmp_path / "set", 25), denoiser, epochs=5, t_max=1e-7)
    rows = denoiser.rows()
    assert sorted(number for _, number in rows) == sorted(list(range(25)) * 5)
    for latent, number in rows:
        assert torch.allclose(latent, latent_of(number, SHAPES[number % 3])["samples"][0] * SCALE, atol=1e-5)


def test_d3_a_hole_is_named_before_anything_trains(tmp_path) -> None:
    with CacheWriter(tmp_path / "set") as writer:
        writer.add(latent=latent_of(0, SHAPES[0]), conditioning=words_of(0), source="whole.png")
        writer.add(latent=latent_of(1, SHAPES[0]), source="hole.png")
    denoiser = SmallDenoiser()
    with pytest.raises(TrainError, match=r"sample 1 \(hole.png\): conditioning is missing \(1 of 2 samples\)"):
        run_training(tmp_path, open_cache(tmp_path / "set"), denoiser)
    assert not denoiser.calls


def test_d5_shared_embeddings_are_the_same_at_step_1_and_1000(tmp_path) -> None:
    dataset, denoiser = make_dataset(tmp_path / "set", 12), SmallDenoiser()
    run_training(tmp_path, dataset, denoiser, steps=1000, caption_dropout=0.5, save_every=0)
    first, last = denoiser.calls[:20], denoiser.calls[-20:]
    for call in first + last:
        for text in call["text"]:
            assert (text == text[0, 0]).all() and text[0, 0].item() in range(-1, 12)
    assert torch.equal(realize(dataset[3].conditioning)[0][0], words_of(3)[0][0])


def make_prior_set(path: Path, custom: bool, prior: bool, encoded: list[str]):
    """Six images of a subject and optionally nine of its class. Texts go through `once`, as in encoding."""

    def text(writer: CacheWriter, caption: str, number: int) -> str:
        writer.once(caption, lambda: encoded.append(caption) or words_of(number), "conditioning")
        return caption

    with CacheWriter(path) as writer:
        for number in range(6):
            caption = f"my cat, picture {number}" if custom else "my cat"
            key = text(writer, caption, number if custom else 50)
            writer.put(f"latent {number}", latent_of(number, SHAPES[number % 2]), "latent")
            writer.sample(
                {"latent": [f"latent {number}"], "conditioning": [key]}, SampleFacts(captions=caption, set="subject")
            )
        for number in range(100, 109) if prior else ():
            key = text(writer, "a cat", 99)
            writer.put(f"latent {number}", latent_of(number, SHAPES[number % 2]), "latent")
            writer.sample(
                {"latent": [f"latent {number}"], "conditioning": [key]},
                SampleFacts(captions="a cat", weight=0.5, set="class"),
            )
        writer.describe_set("subject", {"prior": False})
        if prior:
            writer.describe_set("class", {"prior": True})
    return open_cache(path)


@pytest.mark.parametrize(
    ("custom", "prior", "epochs"), [*itertools.product([False, True], [False, True], [1]), (True, True, 3)]
)
def test_d6_class_images_come_with_their_prompt_which_is_encoded_once(tmp_path, custom, prior, epochs) -> None:
    encoded: list[str] = []
    dataset, denoiser = make_prior_set(tmp_path / "set", custom, prior, encoded), Watched()
    run_training(tmp_path, dataset, denoiser, epochs=epochs, batch_size=3, t_max=1e-7)
    assert encoded.count("a cat") == prior and len(encoded) == (6 if custom else 1) + prior
    subjects = [(x, n) for x, n in denoiser.rows() if n != 99]
    partners = [x for x, n in denoiser.rows() if n == 99]
    assert len(subjects) == 6 * epochs and len(partners) == (6 * epochs if prior else 0)
    for latent, number in subjects:
        candidates = [number] if custom else range(6)
        assert any(is_latent(latent, n) for n in candidates)
    assert all(any(is_latent(latent, n) for n in range(100, 109)) for latent in partners)


def test_d6_class_images_count_by_their_weight(tmp_path) -> None:
    dataset = make_prior_set(tmp_path / "set", True, True, [])
    with open_run(tmp_path / "runs", "test") as run:
        session = open_session(SmallDenoiser(), dataset, TrainConfig(rank=2, batch_size=3, prior_weight=0.4), run)
    plan = session.order.plan(session.order.epoch(0), 0)
    weights = session.stepper.weights.of(plan).tolist()
    assert len(weights) == 6 and weights == pytest.approx([1.0] * 3 + [0.5 * 0.4] * 3)


def is_latent(given: torch.Tensor, number: int) -> bool:
    expected = latent_of(number, SHAPES[number % 2])["samples"][0] * SCALE
    return given.shape == expected.shape and torch.allclose(given, expected, atol=1e-5)


def test_a23_set_counts_of_the_settings_reach_the_order(tmp_path) -> None:
    dataset, denoiser = make_prior_set(tmp_path / "set", True, True, []), SmallDenoiser()
    run_training(tmp_path, dataset, denoiser, epochs=4, set_samples={"subject": 2})
    texts = torch.cat([call["text"][:, 0, 0] for call in denoiser.calls])
    assert (texts != 99).sum() == 8 and len(set(texts[texts != 99].tolist())) > 2
    with pytest.raises(TrainError, match='"mine" is not a set of the dataset; expected one of "subject", "class"'):
        run_training(tmp_path, dataset, set_samples={"mine": 2})
    with pytest.raises(TrainError, match='set_weights: "class" is a prior set'):
        run_training(tmp_path, dataset, set_weights={"class": 2.0})


def test_masks_and_several_captions_reach_the_step(tmp_path) -> None:
    with CacheWriter(tmp_path / "set") as writer:
        for number in range(8):
            keys = [f"text {number} {line}" for line in range(3)]
            for line, key in enumerate(keys):
                writer.put(key, words_of(10 * number + line), "conditioning")
            writer.put(f"latent {number}", latent_of(number, SHAPES[0]), "latent")
            writer.put(f"mask {number}", torch.zeros(8, 8), "mask")
            fields = {"latent": [f"latent {number}"], "conditioning": keys, "mask": [f"mask {number}"]}
            writer.sample(fields, SampleFacts(captions=["a", "b", "c"]))
    denoiser = SmallDenoiser()
    dataset = open_cache(tmp_path / "set")
    run_training(tmp_path, dataset, denoiser, epochs=6)
    lines = torch.cat([call["text"][:, 0, 0] for call in denoiser.calls]).int() % 10
    assert set(lines.tolist()) == {0, 1, 2}
    # A mask of zeros: nothing counts, so nothing is lost.
    run_training(tmp_path / "masked", dataset, steps=2, masked_loss=True)
    rows = (tmp_path / "masked/runs/test/metrics.jsonl").read_text()
    assert '"loss": 0.0' in rows


def test_masked_loss_without_masks_and_a_dataset_of_other_channels_are_refused(tmp_path) -> None:
    with pytest.raises(TrainError, match="masked_loss = true: the dataset has no masks"):
        run_training(tmp_path, make_dataset(tmp_path / "set"), masked_loss=True)
    with CacheWriter(tmp_path / "other") as writer:
        writer.add(latent={"samples": torch.zeros(1, 16, 8, 8)}, conditioning=words_of(0))
    with pytest.raises(TrainError, match="16 channels, the model takes 4"):
        run_training(tmp_path, open_cache(tmp_path / "other"))


def test_a16_an_empty_dataset_is_refused_and_one_sample_trains(tmp_path) -> None:
    with CacheWriter(tmp_path / "empty"):
        pass
    with pytest.raises(TrainError, match="the dataset has no samples; encode images first"):
        run_training(tmp_path, open_cache(tmp_path / "empty"))
    assert run_training(tmp_path, make_dataset(tmp_path / "one", 1), batch_size=64).step == 6
