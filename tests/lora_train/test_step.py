"""Parts of a step: the moving average, signals during an update, errors of the model, and layers that learn nothing."""

import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from streamcache.dataset_cache import CacheWriter, Dataset, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train.compute import Ema
from streamcache.lora_train.data.sizes import KnownSizes
from streamcache.lora_train.run.folder import read_run_json
from streamcache.lora_train.run.metrics import read_curves
from streamcache.lora_train.run.signals import signals_held
from streamcache.lora_train.step import clip_gradients

from ..support.small_parts import SmallDenoiser, latent_of, make_dataset, run_training, words_of


def module() -> nn.Linear:
    linear = nn.Linear(2, 1, bias=False)
    nn.init.constant_(linear.weight, 0.0)
    return linear


def test_the_average_follows_the_weights_with_a_decay_that_warms_up():
    linear, expected = module(), 0.0
    ema = Ema(linear, 0.5)
    for step in range(1, 12):
        nn.init.constant_(linear.weight, float(step))
        ema.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    assert ema.tensors()["weight"][0, 0].item() == pytest.approx(expected)


def test_applied_uses_the_average_and_restores_the_weights_after_an_error():
    linear = module()
    ema = Ema(linear, 0.9)
    nn.init.constant_(linear.weight, 4.0)
    with pytest.raises(RuntimeError), ema.applied():
        assert linear.weight.abs().max() == 0
        raise RuntimeError
    assert (linear.weight == 4).all()


def test_a_state_continues_bit_for_bit():
    first, second = module(), module()
    one, other = Ema(first, 0.9), Ema(second, 0.9)
    for value in (0.3, 0.7):
        nn.init.constant_(first.weight, value)
        one.update()
    other.load(one.tensors())
    for linear, ema in ((first, one), (second, other)):
        nn.init.constant_(linear.weight, 1.1)
        ema.update()
    assert torch.equal(one.tensors()["weight"], other.tensors()["weight"]) and other.updates == 3


def test_frozen_weights_have_no_average():
    linear = nn.Linear(2, 2)
    linear.bias.requires_grad_(False)
    assert set(Ema(linear, 0.9).tensors()) == {"weight", "~updates"}


def test_half_precision_weights_are_averaged_in_float32():
    linear = module().bfloat16()
    ema = Ema(linear, 0.999)
    with ema.applied():
        assert linear.weight.dtype == torch.bfloat16
    assert ema.tensors()["weight"].dtype == torch.float32


def test_a_signal_within_an_update_waits_for_its_end() -> None:
    order = []
    before = signal.signal(signal.SIGINT, lambda *_: order.append("signal"))
    try:
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            order.append("update")
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert order == ["update", "signal", "signal"]


def test_signals_are_left_alone_outside_of_the_main_thread() -> None:
    problems = []

    def work() -> None:
        try:
            with signals_held():
                pass
        except ValueError as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not problems


def add_images(path: Path, *shapes: tuple[int, int], sized: bool = True) -> Dataset:
    with CacheWriter(path) as writer:
        for number, shape in enumerate(shapes):
            crop = {"crop": (0, 0, shape[1] * 8, shape[0] * 8)} if sized else {}
            facts = {"caption": "a", "source": f"{number}.png", **crop}
            writer.add(latent=latent_of(number, shape), conditioning=words_of(number), **facts)
    return open_cache(path)


class Narrow(SmallDenoiser):
    """A model with a table of positions: wider images fail in its own assertion."""

    def predict(self, x_t, t, conditioning):
        assert x_t.shape[-1] <= 8, (x_t.shape[-1], 8)
        return super().predict(x_t, t, conditioning)


@pytest.mark.parametrize(("known", "held_out"), [(True, 0.0), (False, 0.0), (True, 0.5)])
def test_a_bucket_that_the_model_cannot_take_is_named_in_pixels(tmp_path, known: bool, held_out: float) -> None:
    dataset = add_images(tmp_path / "set", *[(8, 8), (4, 12)] * 6, sized=known)
    place = "bucket 96×32" if known else r"sample \d+ \(\d+.png\)"
    # Which of the two sizes is first depends on the order of batches.
    found = "(the model cannot take images of this size|the first batch failed)"
    words = rf"{place}: {found} \(AssertionError: \(12, 8\)\);.* encode with another resolution"
    with pytest.raises(TrainError, match=words):
        run_training(tmp_path, dataset, Narrow(), validation_share=held_out)


class Failing(SmallDenoiser):
    """Every call raises this error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def predict(self, x_t: Tensor, t: Tensor, conditioning: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize(("sized", "place"), [(True, "bucket 64×64"), (False, r"sample \d \(\d.png\)")])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors …"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (77x768 and 1024x320)"),  # the text is too narrow
        AssertionError("this model needs a pooled output"),
    ],
)
def test_an_error_of_the_first_batch_is_not_blamed_on_the_size_of_its_images(tmp_path, sized, place, error) -> None:
    dataset = add_images(tmp_path / "set", (8, 8), (8, 8), sized=sized)
    quoted = re.escape(f"{type(error).__name__}: {error}".partition("\n")[0])
    with pytest.raises(TrainError, match=rf"^{place}: the first batch failed \({quoted}\); if the model cannot take"):
        run_training(tmp_path, dataset, Failing(error))


def test_any_error_of_one_size_is_blamed_on_it_if_another_size_has_worked(tmp_path) -> None:
    sizes = KnownSizes(add_images(tmp_path / "set", (8, 8), (4, 12)))
    with sizes.explained(0, (1, 4, 8, 8)):
        pass
    blamed = pytest.raises(TrainError, match="^bucket 96×32: the model cannot take images of this size")
    with blamed, sizes.explained(1, (1, 4, 4, 12)):
        raise RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")


@pytest.mark.parametrize("error", [RuntimeError("MPS backend out of memory (MPS allocated: 17 GB)"), MemoryError()])
def test_memory_that_runs_out_is_not_blamed_on_the_size_of_images(tmp_path, error: Exception) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as raised:
        run_training(tmp_path, add_images(tmp_path / "set", (8, 8), (8, 8)), Failing(error))
    assert raised.value is error


class Unreached(SmallDenoiser):
    """Some of its layers are called without a gradient, as by an attention that has none, or not at all."""

    def __init__(self, *detached: str, skipped: bool = False) -> None:
        super().__init__()
        self.detached, self.skipped = detached, skipped

    def predict(self, x_t: Tensor, t: Tensor, conditioning: Tensor) -> Tensor:
        def run(name: str, value: Tensor) -> Tensor:
            if name not in self.detached:
                return self.layers[name](value)
            return torch.zeros(*value.shape[:-1], 16) if self.skipped else self.layers[name](value).detach()

        hidden = run("up", x_t.movedim(1, -1)) + run("text", conditioning.mean(1))[:, None, None]
        return run("down", torch.tanh(hidden + t[:, None, None, None])).movedim(-1, 1)


def test_j8_a_model_most_of_whose_layers_cannot_learn_is_refused_before_step_2(tmp_path):
    dataset = make_dataset(tmp_path / "set")
    with pytest.raises(TrainError, match=r"2 of 3 adapted layers get no gradient \(up, text\)"):
        run_training(tmp_path, dataset, Unreached("up", "text"), targets="all")
    assert read_curves(tmp_path / "runs/test/metrics.jsonl").losses == []


def test_j8_a_few_layers_that_cannot_learn_are_named_in_the_log_and_with_the_run(tmp_path, caplog):
    dataset = make_dataset(tmp_path / "set")
    result = run_training(tmp_path, dataset, Unreached("text"), targets="all")
    assert not result.stopped
    words = "1 of 3 adapted layers get no gradient and stay as they are: text"
    assert [r.message for r in caplog.records if "gradient" in r.message] == [words]
    assert read_run_json(tmp_path / "runs/test")["notes"] == words
    run_training(tmp_path, dataset, mode="resume", targets="all", steps=8, accept_changes=True)
    assert read_run_json(tmp_path / "runs/test")["notes"] == "", "of the first part of the run"


@pytest.mark.parametrize("skipped", [("text",), ("up", "text")])
@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"checkpointing": True}])
def test_j8_a_layer_that_is_never_called_is_refused_by_name_before_step_2(tmp_path, skipped, settings):
    dataset = make_dataset(tmp_path / "set")
    words = rf"{len(skipped)} of 3 adapted layers are never called in training \({', '.join(skipped)}\)"
    with pytest.raises(TrainError, match=words):
        run_training(tmp_path, dataset, Unreached(*skipped, skipped=True), targets="all", **settings)
    assert read_curves(tmp_path / "runs/test/metrics.jsonl").losses == []


@pytest.mark.parametrize("settings", [{"targets": "all, !text"}, {"targets": "all", "group_rates": {"text": 0.0}}])
def test_j8_the_remedies_for_a_layer_that_is_never_called(tmp_path, settings):
    assert not run_training(
        tmp_path, make_dataset(tmp_path / "set"), Unreached("text", skipped=True), **settings
    ).stopped


class Fused(SmallDenoiser):
    """Samples without calling one of its layers, as a host that fuses it."""

    def sample(self, conditioning: Any, shape: tuple[int, ...], seed: int, steps: int) -> Tensor:
        return self.layers["down"](self.layers["up"](torch.ones(*shape[1:], shape[0]))).movedim(-1, 0)[None]


def test_j8_a_layer_that_sample_images_do_not_call_is_refused_by_name_after_the_first(tmp_path):
    dataset = make_dataset(tmp_path / "set")
    with pytest.raises(TrainError, match=r"1 of 3 adapted layers are never called for sample images \(text\)"):
        run_training(tmp_path, dataset, Fused(), targets="all", sample_every=4)
    assert len(list((tmp_path / "runs/test/samples").glob("*.png"))) == 1
    assert not run_training(tmp_path, dataset, Fused(), targets="up, down", sample_every=4).stopped


def test_j8_layers_that_all_learn_are_not_mentioned(tmp_path, caplog):
    run_training(tmp_path, make_dataset(tmp_path / "set"), targets="all", accumulate=2)
    assert not [record for record in caplog.records if "gradient" in record.message]


@pytest.mark.parametrize("largest", [0.5, 1e6])
def test_gradients_are_clipped_as_torch_clips_them(largest: float) -> None:
    random = torch.Generator().manual_seed(0)
    ours, torchs = ([nn.Parameter(torch.zeros(shape)) for shape in ((4, 6), (3,), (5, 5))] for _ in range(2))
    for one, other in zip(ours[:2], torchs[:2]):
        one.grad = torch.randn(one.shape, generator=random)
        other.grad = one.grad.clone()
    clip_gradients(ours, largest)
    torch.nn.utils.clip_grad_norm_(torchs, largest)
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(ours[:2], torchs[:2]))
    assert ours[2].grad is None
    clip_gradients([ours[2]], largest)
