"""Scenario: ComfyUI's models behind the denoiser protocol, for both families of files."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from streamcache.dataset_cache import CacheWriter, open_cache

from .claims import claim, hold
from .families import FAMILIES, Loaded, call, encode, load


@dataclass
class Case:
    """A family, its data, and a cache: samples 0 to 3 in one bucket, 4 in another."""

    name: str
    models: Loaded
    folder: Path
    latents: list[dict]
    conditionings: list[list]

    @property
    def dataset(self) -> Any:
        return open_cache(self.folder / self.name)

    def denoiser(self, **settings: Any) -> Any:
        from streamcache.nodes.host.model.denoiser import HostDenoiser

        return HostDenoiser(self.models.model, **settings)


def run(base: Path) -> dict:
    outcome: dict[str, Any] = {}
    for name in FAMILIES:
        began = time.perf_counter()
        case = make_case(name, base / "denoiser")
        outcome[name] = hold("denoiser_claims", globals(), case)
        outcome[name]["seconds"] = time.perf_counter() - began
    return outcome


def make_case(name: str, folder: Path) -> Case:
    models = load(name)
    latents, conditionings = encode(models)
    latents = [
        latents[0],
        latents[1],
        *[call("LatentFlip", samples=each, flip_method="x-axis")[0] for each in latents[:2]],
    ]
    conditionings = [*conditionings, call("CLIPTextEncode", clip=models.clip, text="a house by the sea")[0]]
    latents.append(encode(models)[0][2])
    conditionings.append(conditionings[0])
    case = Case(name, models, folder, latents, conditionings)
    write(folder / name, latents, conditionings)
    return case


def write(path: Path, latents: list[dict], conditionings: list[list], **facts: Any) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with CacheWriter(path) as writer:
        for number, (latent, conditioning) in enumerate(zip(latents, conditionings, strict=True)):
            writer.add(latent=latent, conditioning=conditioning, source=f"{number}.png", caption=str(number), **facts)


@contextmanager
def training(denoiser: Any) -> Iterator[Any]:
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        yield denoiser


@contextmanager
def counted_rows(denoiser: Any) -> Iterator[list[int]]:
    """The number of rows of every model call inside."""
    rows: list[int] = []
    handle = denoiser.model.diffusion_model.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    try:
        yield rows
    finally:
        handle.remove()


def noisy(denoiser: Any, dataset: Any, indices: list[int]) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A prepared batch, noisy latents, times and the target. A row is the same in every batch."""
    prepared = denoiser.prepare(dataset.read_batch(indices))
    times = torch.tensor([(0.15 + 0.2 * index) % 1 for index in indices])
    noise = torch.stack(
        [torch.randn(prepared.latents.shape[1:], generator=torch.Generator().manual_seed(i)) for i in indices]
    )
    x_t = denoiser.schedule.noisy(prepared.latents, noise, times)
    return prepared, x_t, times, denoiser.schedule.target(prepared.latents, noise, times)


def predict(denoiser: Any, dataset: Any, indices: list[int]) -> torch.Tensor:
    prepared, x_t, times, _ = noisy(denoiser, dataset, indices)
    with torch.no_grad():
        return denoiser.predict(x_t, times, prepared.conditioning)


def sampled(case: Case, seed: int = 7) -> torch.Tensor:
    (latent,) = call(
        "KSampler", model=case.models.model, seed=seed, steps=2, cfg=3.0, sampler_name="euler", scheduler="simple",
        positive=case.conditionings[0], negative=case.conditionings[2],
        latent_image={"samples": torch.zeros_like(case.latents[0]["samples"])}, denoise=1.0,
    )  # fmt: skip
    return latent["samples"]


@claim
def a_batch_of_four_is_one_call_of_four_rows_that_equals_four_single_calls(case: Case) -> None:
    with training(case.denoiser()) as denoiser, counted_rows(denoiser) as rows:
        together = predict(denoiser, case.dataset, [0, 1, 2, 3])
        assert rows == [4], rows
        apart = torch.cat([predict(denoiser, case.dataset, [i]) for i in range(4)])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)


@claim
def every_row_gets_its_own_caption(case: Case) -> None:
    """If the captions of two rows are swapped, these two rows change and the others do not."""
    exchanged = [case.conditionings[i] for i in (1, 0, 2, 3)]
    write(case.folder / "exchanged", case.latents[:4], exchanged)
    with training(case.denoiser()) as denoiser:
        own = predict(denoiser, case.dataset, [0, 1, 2, 3])
        other = predict(denoiser, open_cache(case.folder / "exchanged"), [0, 1, 2, 3])
    change = (own - other).abs().flatten(1).amax(1)
    assert (change[:2] > 1e-3).all() and (change[2:] < 1e-4).all(), change


@claim
def captions_of_two_lengths_split_the_batch_and_keep_the_order_of_rows(case: Case) -> None:
    longer = call("ConditioningConcat", conditioning_to=case.conditionings[1], conditioning_from=case.conditionings[3])[
        0
    ]
    different = [case.conditionings[0], longer, case.conditionings[2], longer]
    pooled = [[[c[0][0][:, :70] if i == 2 else c[0][0], c[0][1]]] for i, c in enumerate(different)]
    write(case.folder / "lengths", case.latents[:4], pooled)
    dataset = open_cache(case.folder / "lengths")
    with training(case.denoiser()) as denoiser, counted_rows(denoiser) as rows:
        together = predict(denoiser, dataset, [0, 1, 2, 3])
        assert sorted(rows) == ([1, 1, 2] if case.name == "flow" else [1, 3]), rows
        apart = torch.cat([predict(denoiser, dataset, [i]) for i in range(4)])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)


@claim
def every_bucket_is_scaled_as_the_host_scales_what_it_samples(case: Case) -> None:
    """Core's trainer leaves buckets and mixed resolutions unscaled (its defect 2)."""
    with training(case.denoiser()) as denoiser:
        for indices in ([0, 1, 2, 3], [4]):
            prepared = denoiser.prepare(case.dataset.read_batch(indices))
            raw = torch.cat([case.latents[i]["samples"] for i in indices])
            expected = case.models.model.model.process_latent_in(raw)
            assert torch.equal(prepared.latents, expected) and not torch.equal(expected, raw)


@claim
def the_native_prediction_is_the_one_that_the_host_denoises_with(case: Case) -> None:
    with training(case.denoiser()) as denoiser:
        prepared, x_t, times, _ = noisy(denoiser, case.dataset, [0, 1])
        sigma = denoiser.schedule.sigma(times)
        with torch.no_grad():
            native = denoiser.predict(x_t, times, prepared.conditioning)
            options = {"transformer_options": {"cond_or_uncond": [0], "sigmas": sigma}}
            clean = denoiser.model.apply_model(x_t, sigma, **prepared.conditioning[0].inputs, **options)
        implied = denoiser.model.model_sampling.calculate_denoised(sigma, native, x_t)
    torch.testing.assert_close(implied, clean, rtol=1e-4, atol=1e-3)


@claim
def the_weights_are_aliased_and_restored(case: Case) -> None:
    model = case.models.model.model
    before = dict(model.named_parameters())
    assert all(value.is_inference() for value in before.values())
    with training(case.denoiser()):
        inside = dict(model.named_parameters())
        assert not any(value.is_inference() for value in inside.values())
        assert all(inside[name].data_ptr() == value.data_ptr() for name, value in before.items())
    after = dict(model.named_parameters())
    assert all(after[name] is value for name, value in before.items())


@claim
def after_training_an_error_and_an_interrupt_the_model_samples_as_before(case: Case) -> None:
    import comfy.model_management as management

    before, weights = sampled(case), fingerprint(case.models.model.model)
    state = torch.get_rng_state()
    for ending in (None, RuntimeError("an error"), management.InterruptProcessingException()):
        try:
            with training(case.denoiser()) as denoiser:
                assert management.in_training
                prepared, x_t, times, target = noisy(denoiser, case.dataset, [0, 1])
                x_t.requires_grad_()
                ((denoiser.predict(x_t, times, prepared.conditioning) - target) ** 2).mean().backward()
                assert x_t.grad.abs().max() > 0
                torch.rand(3)
                if ending is not None:
                    raise ending
        except (RuntimeError, management.InterruptProcessingException) as stopped:
            assert stopped is ending
        assert not management.in_training
        assert torch.equal(torch.get_rng_state(), state)
        assert fingerprint(case.models.model.model) == weights
        hooked = [m for m in case.models.model.model.modules() if m._forward_hooks or m._forward_pre_hooks]
        assert not hooked and not any("forward" in vars(m) for m in case.models.model.model.modules())
    assert torch.equal(sampled(case), before)


def fingerprint(model: Any) -> list[tuple[str, float, int]]:
    return [
        (name, value.double().sum().item(), int(value.detach().view(torch.uint8).to(torch.int64).sum()))
        for name, value in model.state_dict().items()
    ]


@claim
def a_sample_equals_ksamplers_for_the_same_seed(case: Case) -> None:
    from streamcache.nodes.host.model.previews import PreviewSettings

    expected = sampled(case, seed=7)
    denoiser = case.denoiser(preview=PreviewSettings(negative=case.conditionings[2], cfg=3.0))
    shape = tuple(case.latents[0]["samples"].shape[1:])
    with training(denoiser), torch.no_grad():
        found = denoiser.sample(case.conditionings[0], shape, 7, 2)
        pictures = denoiser.decode(case.models.vae, found)
        denoiser.prepare(case.dataset.read_batch([0]))
    assert torch.equal(found, expected)
    assert [picture.size for picture in pictures] == [(shape[-1] * 8, shape[-2] * 8)]


@claim
def a_cache_of_another_family_is_refused_with_both_numbers(case: Case) -> None:
    from streamcache.errors import TrainError

    other = next(name for name in FAMILIES if name != case.name)
    wrong_latents = [{"samples": torch.zeros(1, 4 if case.name == "flow" else 16, 8, 8)}]
    write(case.folder / f"latents of {other}", wrong_latents, case.conditionings[:1])
    text = [[torch.zeros(1, 77, 1024), {"pooled_output": torch.zeros(1, 2048)}]]
    write(case.folder / f"text of {other}", case.latents[:1], [text])
    expected = "4096" if case.name == "flow" else "768"
    wanted = {f"latents of {other}": ("4", "16"), f"text of {other}": ("1024", expected)}
    for folder, numbers in wanted.items():
        try:
            with training(case.denoiser()) as denoiser:
                denoiser.prepare_for(open_cache(case.folder / folder))
        except TrainError as refused:
            assert all(number in str(refused) for number in numbers), refused
        else:
            raise AssertionError(f"{folder} was accepted")


@claim
def a_fitting_cache_is_accepted(case: Case) -> None:
    with training(case.denoiser()) as denoiser:
        denoiser.prepare_for(case.dataset)


@claim
def a_conditioning_with_several_entries_or_an_area_is_refused(case: Case) -> None:
    from streamcache.errors import TrainError

    combined = call("ConditioningCombine", conditioning_1=case.conditionings[0], conditioning_2=case.conditionings[1])[
        0
    ]
    part = call("ConditioningSetTimestepRange", conditioning=case.conditionings[0], start=0.2, end=0.8)[0]
    for conditioning, word in ((combined, "2 entries"), (part, "start_percent")):
        write(case.folder / "special", case.latents[:1], [conditioning])
        try:
            with training(case.denoiser()) as denoiser:
                denoiser.prepare_for(open_cache(case.folder / "special"))
        except TrainError as refused:
            assert word in str(refused) and "0.png" in str(refused), refused
        else:
            raise AssertionError(f"{word} was accepted")


@claim
def the_hosts_lora_loader_knows_the_export_names(case: Case) -> None:
    import comfy.lora

    denoiser = case.denoiser()
    known = comfy.lora.model_lora_keys_unet(case.models.model.model, {})
    for naming in ("comfyui", "kohya"):
        names = denoiser.export_names(naming)
        assert list(names) == list(denoiser.adaptable())
        assert all(known[prefix] == f"diffusion_model.{name}.weight" for name, prefix in names.items())


@claim
def checkpointed_blocks_give_the_same_gradients_and_run_again_in_the_backward_pass(case: Case) -> None:
    from streamcache.lora_train.memory import checkpointed

    gradients, calls = [], []
    with training(case.denoiser()) as denoiser:
        denoiser.prepare_for(case.dataset)
        for blocks in ([], denoiser.blocks()):
            count = {id(block): 0 for block in denoiser.blocks()}
            with checkpointed(blocks), watched_forwards(denoiser.blocks(), count):
                prepared, x_t, times, target = noisy(denoiser, case.dataset, [0, 1])
                x_t.requires_grad_()
                ((denoiser.predict(x_t, times, prepared.conditioning) - target) ** 2).mean().backward()
            gradients.append(x_t.grad)
            calls.append(set(count.values()))
    assert calls == [{1}, {2}], calls
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


@contextmanager
def watched_forwards(blocks: list[Any], count: dict[int, int]) -> Iterator[None]:
    """Count how often the first layer of each block runs; a second pass runs it again."""
    handles = []
    for block in blocks:
        first = next(m for m in block.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d))

        def note(*_: Any, key: int = id(block)) -> None:
            count[key] += 1

        handles.append(first.register_forward_pre_hook(note))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
