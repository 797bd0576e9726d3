"""Scenario: the memory forecast of ComfyUI's models, and what makes them need less."""

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch._subclasses.fake_tensor import FakeTensorMode

from streamcache.bench.autocast import gpu_rules
from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train import TrainConfig, TrainHooks, forecast_training, open_run, report_memory, train
from streamcache.lora_train.memory import activations_in_ram, checkpointed

from ..lora_train.forecast.measured import measured_peak
from ..lora_train.short_runs import assert_same_state, last_state
from .claims import claim, hold
from .family_claims import gradients, quantize
from .small_families import SMALL, make_patcher, make_samples

STAND_IN = torch.device("meta")  # for RAM, of tensors without data


def run(base: Path) -> dict:
    return hold("memory_claims", globals(), base / "memory")


def dataset_of(name: str, folder: Path) -> Any:
    with CacheWriter(folder / name) as writer:
        for number, sample in enumerate(make_samples(name, 4)):
            facts = {"original_size": (900 + number, 600), "crop": (8 * number, 0, 64, 64)}
            writer.add(**sample, source=f"{number}.png", **facts)
    return open_cache(folder / name)


def denoiser_of(name: str, **settings: Any) -> Any:
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    change = settings.pop("change", lambda model: None)
    return HostDenoiser(make_patcher(name, change), **settings)


def within_a_tenth(name: str, folder: Path, precision: str = "auto", **settings: Any) -> None:
    change = settings.pop("change", lambda model: None)
    dataset, denoiser = dataset_of(name, folder), denoiser_of(name, precision=precision, change=change)
    config = TrainConfig(steps=2, rank=2, batch_size=4, precision=precision, **settings)
    forecast = forecast_training(denoiser, dataset, config)
    measured = measured_peak(denoiser, dataset, config)
    assert abs(forecast.peak / measured - 1) <= 0.1, (name, forecast.peak, measured)


@claim
def the_forecast_is_within_a_tenth_of_the_measured_peak_for_every_family(folder: Path) -> None:
    for name in SMALL:
        within_a_tenth(name, folder)


@claim
def the_forecast_knows_checkpointing_and_precision(folder: Path) -> None:
    within_a_tenth("SDXL", folder / "checkpointed", checkpointing=True)
    within_a_tenth("Qwen-Image", folder / "bf16", precision="bf16", checkpointing=True)


@claim
def the_forecast_knows_what_the_autocast_of_a_gpu_keeps_in_fp32(folder: Path) -> None:
    with gpu_rules("CPU"):
        for name in ("SDXL", "Qwen-Image"):
            within_a_tenth(name, folder, precision="bf16")


@claim
def the_autocast_of_the_forecasts_of_the_page_gives_the_types_of_a_gpu(_: Path) -> None:
    def types(device: str) -> list[torch.dtype]:
        x = torch.empty(4, 8, 16, device=device, dtype=torch.bfloat16)
        weight = torch.empty(16, 16, device=device)
        found = [
            functional.softmax(x, -1), functional.layer_norm(x, (16,)), functional.group_norm(x, 2),
            functional.rms_norm(x, (16,)), functional.gelu(x), functional.silu(x), functional.linear(x, weight),
            x @ weight, functional.mse_loss(x, x), x.pow(2), x.pow(2).mean(-1), x.rsqrt(), x.exp(), x.sum(),
            x.cumsum(0), x.mean(), x.norm(dim=-1), x + x, torch.cat([x, x.float()]), torch.addcmul(x, x, x),
        ]  # fmt: skip
        return [value.dtype for value in found]

    own = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    try:
        for kind in ("cpu", "cuda"):  # `torch.autocast("cuda")` refuses without a GPU
            torch.set_autocast_dtype(kind, torch.bfloat16)
            torch.set_autocast_enabled(kind, True)
        with FakeTensorMode():
            expected = types("cuda")
            with gpu_rules("CPU"):
                assert types("cpu") == expected
            assert types("cpu") != expected
    finally:
        for kind, (enabled, dtype) in zip(("cpu", "cuda"), own, strict=True):
            torch.set_autocast_dtype(kind, dtype)
            torch.set_autocast_enabled(kind, enabled)


@claim
def the_forecast_knows_quantized_weights(folder: Path) -> None:
    within_a_tenth("Flux", folder, change=quantize)


@claim
def the_forecast_refuses_a_dataset_that_does_not_fit_in_the_words_of_the_training(folder: Path) -> None:
    for name, other in {"text": make_samples("Flux", 1), "latents": make_samples("SDXL", 1)}.items():
        (sample,) = other
        if name == "text":
            ((text, extras),) = sample["conditioning"]
            sample["conditioning"] = [[torch.cat((text, text), -1), extras]]
        with CacheWriter(folder / f"unfit {name}") as writer:
            writer.add(**sample, source="1.png", original_size=(64, 64), crop=(0, 0, 64, 64))
        dataset, denoiser = open_cache(folder / f"unfit {name}"), denoiser_of("Flux")
        found = [refusal(lambda: report_memory(denoiser, dataset, TrainConfig(rank=2)))]  # noqa: B023
        found.append(refusal(lambda: _gradients(denoiser, dataset)))  # noqa: B023
        assert found[0] == found[1] and found[0].startswith("dataset: ") and "expect" in found[0], found


def refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except TrainError as error:
        return str(error)
    raise AssertionError("nothing was refused")


@claim
def a_forecast_loads_nothing_and_leaves_no_trace(folder: Path) -> None:
    import comfy.model_management
    from torch._subclasses.fake_tensor import FakeTensor

    dataset, denoiser = dataset_of("Wan", folder), denoiser_of("Wan", precision="bf16")
    model, loaded = denoiser.model, list(comfy.model_management.current_loaded_models)
    before = {name: id(value) for name, value in model.state_dict(keep_vars=True).items()}
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    own = dict(vars(denoiser))
    forecast_training(denoiser, dataset, TrainConfig(rank=2, batch_size=4, checkpointing=True), offload=True)
    gc.collect()
    assert not [value for value in gc.get_objects() if type(value) is FakeTensor]
    assert before == {name: id(value) for name, value in model.state_dict(keep_vars=True).items()}
    for name, module in model.named_modules():
        now, then = vars(module), attributes[name]
        assert now.keys() == then.keys() and all(now[key] is then[key] for key in then), name
    assert {name: id(value) for name, value in vars(denoiser).items()} == {name: id(v) for name, v in own.items()}
    assert loaded == list(comfy.model_management.current_loaded_models) and not comfy.model_management.in_training


@claim
def gradients_after_a_forecast_are_bit_equal(folder: Path) -> None:
    dataset, found = dataset_of("Flux", folder), []
    for forecast in (False, True):
        denoiser = denoiser_of("Flux")
        if forecast:
            forecast_training(denoiser, dataset, TrainConfig(rank=2, batch_size=4))
        found.append(_gradients(denoiser, dataset))
    _equal(*found)


@claim
def offloaded_weights_are_not_counted_but_their_copies_are(folder: Path) -> None:
    dataset, denoiser = dataset_of("Flux", folder), denoiser_of("Flux")
    denoiser.ram = STAND_IN
    config = TrainConfig(rank=2, batch_size=4, checkpointing=True)
    plain, offloaded = (forecast_training(denoiser, dataset, config, offload) for offload in (False, True))
    largest = max(layer.weight.nbytes for layer in denoiser.adaptable().values())
    assert offloaded.weights < plain.weights / 10
    assert plain.peak - plain.weights < offloaded.peak < plain.peak - plain.weights + 4 * largest
    moved = forecast_training(denoiser, dataset, TrainConfig(rank=2, batch_size=4, activation_offload=True))
    assert moved.peak <= forecast_training(denoiser, dataset, TrainConfig(rank=2, batch_size=4)).peak


@claim
def a_share_of_the_weights_is_offloaded_with_equal_gradients(folder: Path) -> None:
    dataset, plain = dataset_of("Flux", folder), denoiser_of("Flux")
    expected = _gradients(plain, dataset)
    for share in (0.5, 1.0):
        denoiser = denoiser_of("Flux", offload=True, offload_share=share)
        with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
            denoiser.prepare_for(dataset)
            cast = [layer for layer in denoiser.adaptable().values() if hasattr(layer, "prev_comfy_cast_weights")]
            assert 0 < len(cast) <= len(denoiser.adaptable()) and (share == 1 or len(cast) < len(denoiser.adaptable()))
            _equal(expected, gradients(denoiser, dataset))


@claim
def a_share_without_effect_is_said_and_not_part_of_the_forecast(_: Path) -> None:
    from streamcache.nodes.host.model import make_denoiser
    from streamcache.nodes.host.model.borrowed import changed
    from streamcache.nodes.host.settings import HostSettings

    patcher, heard = make_patcher("Flux"), Heard()
    logging.getLogger("streamcache").addHandler(heard)
    try:
        for offload, dynamic, words in ((True, False, ""), (False, False, "without offload"), (True, True, "dynamic")):
            heard.words.clear()
            with changed(type(patcher), "is_dynamic", lambda self, dynamic=dynamic: dynamic):
                denoiser = make_denoiser(patcher, TrainConfig(), HostSettings(offload=offload, offload_share=0.25))
                assert denoiser.resident(1000, 0) == (0 if dynamic else 750)
            assert [words in line and "offload_share = 0.25" in line for line in heard.words] == [True] * bool(words)
    finally:
        logging.getLogger("streamcache").removeHandler(heard)


class Heard(logging.Handler):
    """The warnings of the pack."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())


@claim
def a_run_with_a_share_of_offloaded_weights_resumes_bit_for_bit(folder: Path) -> None:
    dataset = dataset_of("Flux", folder)

    def states(name: str, shares: dict[int, float], **settings: Any) -> Any:
        for steps, share in shares.items():
            denoiser = denoiser_of("Flux", offload=share > 0, offload_share=share)
            cast: set[int] = set()  # numbers of layers whose weights are in RAM

            def count(progress: Any, denoiser: Any = denoiser, cast: set[int] = cast) -> None:
                layers = denoiser.adaptable().values()
                cast.add(sum(hasattr(layer, "prev_comfy_cast_weights") for layer in layers))

            config = TrainConfig(rank=2, batch_size=2, steps=steps, learning_rate=1e-2, targets="all", **settings)
            with open_run(folder / "runs", name, "resume" if steps > min(shares) else "new") as run:
                train(denoiser, dataset, config, run, hooks=TrainHooks(progress=count))
            assert (min(cast) > 0) is (share > 0), (name, steps, cast)
        return last_state(folder, name)

    for number, settings in enumerate(({}, {"checkpointing": True, "activation_offload": True})):
        plain = states(f"plain {number}", {5: 0.0}, **settings)
        for name, shares in {"whole": {5: 0.5}, "parts": {2: 0.5, 5: 0.5}, "changed": {2: 1.0, 5: 0.0}}.items():
            assert_same_state(states(f"{name} {number}", shares, **settings), plain)


@claim
def activations_in_ram_have_bit_equal_gradients(folder: Path) -> None:
    dataset, denoiser = dataset_of("Flux", folder), denoiser_of("Flux")
    expected = _gradients(denoiser, dataset)
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        denoiser.prepare_for(dataset)
        with activations_in_ram(denoiser.blocks(), always=True):
            _equal(expected, gradients(denoiser, dataset))
        with checkpointed(denoiser.blocks()), activations_in_ram(denoiser.blocks(), always=True):
            _equal(expected, gradients(denoiser, dataset))


def _gradients(denoiser: Any, dataset: Any) -> dict[str, torch.Tensor]:
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        denoiser.prepare_for(dataset)
        return gradients(denoiser, dataset)


def _equal(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    assert expected.keys() == found.keys() and expected
    assert all(torch.equal(expected[name], found[name]) for name in expected)
