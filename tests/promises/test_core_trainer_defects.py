"""The defects of ComfyUI's own trainer, by their number in the list of host facts: each is absent here.

12's second half (old shards that stay) and 13 (caption paths) belong to the dataset and are tested with it.
"""

import itertools

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train.adapters import AdapterSettings, build_network
from streamcache.lora_train.adapters.adapter import seeded_generator
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.data.order import BatchPlan
from streamcache.lora_train.data.prefetch import Loaded
from streamcache.lora_train.loop import TrainHooks
from streamcache.lora_train.objective import draw_noise, draw_times
from streamcache.lora_train.run.folder import open_run
from streamcache.lora_train.session import open_session
from streamcache.reference.denoiser import ReferenceDenoiser
from streamcache.reference.encoders import CHANNELS, encode_caption
from streamcache.reference.model import ModelSize, ReferenceModel

from ..support.small_parts import SCALE, SHAPES, SmallDenoiser, latent_of, make_dataset, run_training


class Watched(SmallDenoiser):
    """Keeps what it was given, too."""

    def predict(self, x_t, t, conditioning):
        out = super().predict(x_t, t, conditioning)
        self.calls[-1]["x_t"] = x_t.detach().clone()
        return out


def test_defect_1_a_batch_of_b_is_one_model_call_of_b_rows_each_with_its_own_caption(tmp_path) -> None:
    denoiser = SmallDenoiser()
    run_training(tmp_path, make_dataset(tmp_path / "set", 24), denoiser, epochs=1)
    assert [call["rows"] for call in denoiser.calls] == [4] * 6
    seen = torch.cat([call["text"][:, 0, 0] for call in denoiser.calls])
    assert sorted(seen.tolist()) == list(range(24))


def test_defect_2_latents_of_every_bucket_are_scaled_for_the_model(tmp_path) -> None:
    denoiser = Watched()
    # Almost no noise: what the model is given is the scaled latent itself.
    run_training(tmp_path, make_dataset(tmp_path / "set", 24), denoiser, epochs=1, t_max=1e-7)
    assert {call["shape"][2:] for call in denoiser.calls} == set(SHAPES)
    for call in denoiser.calls:
        for row, number in enumerate(call["text"][:, 0, 0].int().tolist()):
            expected = latent_of(number, SHAPES[number % 3])["samples"][0] * SCALE
            assert torch.allclose(call["x_t"][row], expected, atol=1e-5)


def test_defect_3_checkpointing_recomputes_each_block_by_itself(tmp_path) -> None:
    model = ReferenceModel(ModelSize(width=32, depth=3, heads=2))
    visits = []
    for number, block in enumerate(model.blocks):
        block.attn.register_forward_hook(lambda *_, number=number: visits.append(number))
    with CacheWriter(tmp_path / "set") as writer:
        writer.add(latent={"samples": torch.randn(1, CHANNELS, 4, 4)}, conditioning=encode_caption("a cat"))
    run_training(tmp_path, open_cache(tmp_path / "set"), ReferenceDenoiser(model), steps=1, checkpointing=True)
    # Forward through all, then each one again in the backward pass, last block first.
    assert visits == [0, 1, 2, 2, 1, 0]


def test_defect_4_the_loss_is_taken_against_the_native_target(tmp_path) -> None:
    dataset, denoiser = make_dataset(tmp_path / "set"), Watched()
    config = TrainConfig(rank=2)
    with open_run(tmp_path / "runs", "test") as run:
        session = open_session(denoiser, dataset, config, run)
    plan = BatchPlan(0, 0, [0, 3], {}, 2)
    loss = session.stepper.losses(Loaded(plan, dataset.read_batch(plan.indices))).mean()
    latents = torch.cat([latent_of(number, SHAPES[0])["samples"] for number in (0, 3)]) * SCALE
    noise = draw_noise(latents, config.objective(), seeded_generator(f"{config.seed}:0:noise"))
    t = draw_times(2, denoiser.schedule, config.objective(), seeded_generator(f"{config.seed}:0:times"))
    call = denoiser.calls[0]
    prediction = SmallDenoiser().predict(call["x_t"], t, call["text"])
    # Velocity against velocity: no σ² of an x0 loss.
    assert loss.item() == pytest.approx(((prediction - (noise - latents)) ** 2).mean().item(), rel=1e-5)


def test_defect_5_an_existing_lora_of_any_file_name_keeps_its_alpha_and_its_diffs(tmp_path) -> None:
    name = tmp_path / "no step count in this name.safetensors"
    start = {
        "diffusion_model.up.lora_up.weight": torch.randn(16, 2),
        "diffusion_model.up.lora_down.weight": torch.randn(2, 4),
        "diffusion_model.up.alpha": torch.tensor(5.0),
        "diffusion_model.down.diff": torch.randn(4, 16),
        "diffusion_model.down.diff_b": torch.randn(4),
    }
    save_file(start, name)
    result = run_training(tmp_path, make_dataset(tmp_path / "set"), start_from=str(name), targets="up")
    saved = load_file(result.lora)
    assert saved["diffusion_model.up.alpha"] == 5.0
    assert not torch.equal(saved["diffusion_model.up.lora_up.weight"], start["diffusion_model.up.lora_up.weight"])
    for part in ("diff", "diff_b"):
        assert torch.equal(saved[f"diffusion_model.down.{part}"], start[f"diffusion_model.down.{part}"])


def test_defect_6_alpha_is_a_setting_that_is_not_trained_and_up_starts_at_zero(tmp_path) -> None:
    network = build_network(SmallDenoiser(), AdapterSettings(rank=2, alpha=3.0))
    tensors = network.tensors()
    assert not tensors["up.lora_up.weight"].any() and tensors["up.lora_down.weight"].all()
    result = run_training(tmp_path, make_dataset(tmp_path / "set"), alpha=3.0)
    assert load_file(result.lora)["diffusion_model.up.alpha"] == 3.0


def test_defect_7_the_seed_controls_the_start_and_the_global_generator_is_not_touched(tmp_path) -> None:
    starts = [build_network(SmallDenoiser(), AdapterSettings(rank=2, seed=seed)).tensors() for seed in (1, 1, 2)]
    assert torch.equal(starts[0]["up.lora_down.weight"], starts[1]["up.lora_down.weight"])
    assert not torch.equal(starts[0]["up.lora_down.weight"], starts[2]["up.lora_down.weight"])
    dataset, denoiser = make_dataset(tmp_path / "set"), SmallDenoiser()
    torch.manual_seed(9)
    before = torch.get_rng_state()
    run_training(tmp_path, dataset, denoiser)
    assert torch.equal(before, torch.get_rng_state())


def test_defect_8_a_run_of_one_step_is_plotted(tmp_path) -> None:
    run_training(tmp_path, make_dataset(tmp_path / "set"), steps=1)
    assert (tmp_path / "runs/test/loss.png").stat().st_size > 1000


def test_defect_9_epochs_go_without_replacement_and_a_cancel_loses_nothing(tmp_path) -> None:
    dataset, denoiser = make_dataset(tmp_path / "set", 24), SmallDenoiser()
    calls = itertools.count()
    run_training(tmp_path, dataset, denoiser, TrainHooks(stop=lambda: next(calls) == 8), epochs=3)
    run_training(tmp_path, dataset, denoiser, mode="resume", epochs=3)
    seen = torch.cat([call["text"][:, 0, 0] for call in denoiser.calls]).view(3, 24)
    assert all(sorted(epoch) == list(range(24)) for epoch in seen.tolist())
    assert seen[0].tolist() != seen[1].tolist()


def test_defect_10_a_step_reads_its_batch_and_nothing_is_built_ahead(tmp_path) -> None:
    dataset, read = make_dataset(tmp_path / "set", 240), []
    whole = dataset.read_batch
    dataset.read_batch = lambda indices, **rest: read.extend(indices) or whole(indices, **rest)
    run_training(tmp_path, dataset, steps=3, prefetch=2)
    # Three steps of four rows, and at most two batches ahead and one on its way.
    assert 12 <= len(read) <= 24


def test_defect_11_every_batch_reaches_the_model_with_its_own_bucket_and_samples(tmp_path) -> None:
    prepared = []

    class Sized(SmallDenoiser):
        def prepare(self, batch):
            sizes = [dataset.sample(index).original_size for index in batch.indices]
            prepared.append((tuple(batch.latents.shape[2:]), set(sizes)))
            return super().prepare(batch)

    with CacheWriter(tmp_path / "set") as writer:
        for number in range(12):
            shape = SHAPES[number % 3]
            words = [[torch.ones(1, 5, 6), {}]]
            writer.add(latent=latent_of(number, shape), conditioning=words, original_size=(shape[1] * 8, shape[0] * 8))
    dataset = open_cache(tmp_path / "set")
    run_training(tmp_path, dataset, Sized(), epochs=1)
    assert len(prepared) == 3
    assert all(sizes == {(shape[1] * 8, shape[0] * 8)} for shape, sizes in prepared)


def test_defect_12_the_saved_file_describes_itself(tmp_path) -> None:
    dataset = make_dataset(tmp_path / "set")
    with safe_open(run_training(tmp_path, dataset).lora, "pt") as file:
        metadata = file.metadata()
    assert {"ss_dataset_id", "ss_steps", "ss_seed", "ss_network_dim", "ss_network_alpha", "modelspec.title"} <= set(
        metadata
    )
