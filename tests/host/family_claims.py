"""Scenario: models of other families and quantized ones behind the denoiser protocol."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train.adapters import AdapterSettings, build_network
from streamcache.lora_train.memory import checkpointed

from .claims import claim, hold
from .small_families import SMALL, make_patcher, make_samples

SAMPLING = ("EPS", "V_PREDICTION", "V_PREDICTION_EDM", "EDM", "V_PREDICTION_CONTINUOUS", "V_PREDICTION_DDPM",
            "STABLE_CASCADE", "FLOW", "FLUX", "FLOW_COSMOS")  # fmt: skip

# Nothing uses the text output of a last block.
LAST = "transformer_blocks/1"
UNREAD = {"Qwen-Image": {f"{LAST}/txt_mlp/net/0/proj", f"{LAST}/txt_mlp/net/2", f"{LAST}/attn/to_add_out"}}

# The host's code takes the masks of these captions for one row only; four rows are tried once.
ONE_BY_ONE = {"HunyuanVideo"}


def run(base: Path) -> dict:
    return hold("family_claims", globals(), base / "families")


@contextmanager
def training(name: str, folder: Path, **changes: Any) -> Iterator[tuple[Any, Any]]:
    """A small model of a family and a cache of four samples for it, in a session."""
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    with CacheWriter(folder / name) as writer:
        for number, sample in enumerate(make_samples(name, 4)):
            facts = {"original_size": (900 + number, 600), "crop": (8 * number, 0, 64, 64)}
            writer.add(**sample, source=f"{number}.png", **facts)
    denoiser = HostDenoiser(make_patcher(name, **changes))
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        dataset = open_cache(folder / name)
        denoiser.prepare_for(dataset)
        yield denoiser, dataset


def loss_of(denoiser: Any, dataset: Any, indices: list[int]) -> torch.Tensor:
    prepared = denoiser.prepare(dataset.read_batch(indices))
    times = torch.tensor([0.2 + 0.15 * i for i in indices])
    noise = torch.randn(prepared.latents.shape, generator=torch.Generator().manual_seed(3))
    prediction = denoiser.predict(denoiser.schedule.noisy(prepared.latents, noise, times), times, prepared.conditioning)
    return ((prediction - denoiser.schedule.target(prepared.latents, noise, times)) ** 2).mean()


def gradients(denoiser: Any, dataset: Any, kind: str = "lora", targets: str = "all") -> dict[str, torch.Tensor]:
    """Gradients of every adapter after one step with a batch of four, starting from nonzero values."""
    network = build_network(denoiser, AdapterSettings(kind=kind, rank=2, targets=targets, seed=5))
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for value in network.parameters():
            value += 0.05 * torch.randn(value.shape, generator=generator)
    with network.attached(denoiser.adaptable()):
        loss_of(denoiser, dataset, [0, 1, 2, 3]).backward()
    return {name: value.grad for name, value in network.named_parameters() if value.grad is not None}


def close(found: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float, place: str) -> None:
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, msg=lambda words: f"{place}: {words}")


@claim
def every_sampling_of_the_host_gives_a_target_that_denoises_to_the_latents(folder: Path) -> None:
    import comfy.model_base

    from streamcache.nodes.host.model.schedule import ModelSchedule

    expected = {"EPS": "eps", "STABLE_CASCADE": "eps", "FLOW": "flow", "FLUX": "flow", "FLOW_COSMOS": "flow"}
    for name in SAMPLING:
        sampling = comfy.model_base.model_sampling(None, comfy.model_base.ModelType[name])
        schedule = ModelSchedule(sampling)
        assert schedule.prediction == expected.get(name, "v"), (name, schedule.prediction)
        with torch.inference_mode(False):
            latents, noise = torch.randn(5, 4, 6, 6), torch.randn(5, 4, 6, 6)
            times = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.95])
            sigma = schedule.sigma(times)
            x_t = schedule.noisy(latents, noise, times)
            torch.testing.assert_close(x_t, sampling.noise_scaling(sigma, noise, latents), rtol=1e-5, atol=1e-4)
            clean = sampling.calculate_denoised(sigma, schedule.target(latents, noise, times), x_t)
            scale = 1 + sigma.max()  # the rounding error of noise of this size
            torch.testing.assert_close(clean, latents, rtol=1e-4, atol=float(2e-6 * scale))
            assert (schedule.snr(times).diff() < 0).all(), name
            assert (schedule.shifted(times, 3.0) >= times - 1e-3).all(), name


@claim
def an_error_costs_the_same_at_every_noise_level_in_the_models_own_terms(folder: Path) -> None:
    """Core compares denoised latents, which weights errors by σ² (its defect 4)."""
    import comfy.model_base

    from streamcache.lora_train.objective import ObjectiveSettings, row_losses
    from streamcache.nodes.host.model.schedule import ModelSchedule

    for name in SAMPLING:
        schedule = ModelSchedule(comfy.model_base.model_sampling(None, comfy.model_base.ModelType[name]))
        with torch.inference_mode(False):
            times = torch.tensor([0.02, 0.3, 0.6, 0.98])
            target = schedule.target(torch.randn(4, 4, 6, 6), torch.randn(4, 4, 6, 6), times)
            losses = row_losses(target + 0.5, target, times, schedule, ObjectiveSettings())
            torch.testing.assert_close(losses, torch.full((4,), 0.25), rtol=1e-3, atol=1e-4)


@claim
def noise_that_the_host_scales_is_scaled_equally_and_weighted_the_same(folder: Path) -> None:
    """HiDream-O1 uses noise of eight times the size, and one of ComfyUI's nodes sets any size."""
    from comfy_extras.nodes_model_advanced import ModelNoiseScale

    from streamcache.lora_train.objective import WEIGHTINGS, ObjectiveSettings
    from streamcache.lora_train.objective.loss import time_weights
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    plain = make_patcher("Lumina 2")
    expected = HostDenoiser(plain).schedule
    for scale in (1.05, 8.0):
        (patched,) = ModelNoiseScale().patch(plain, scale)
        sampling, schedule = patched.get_model_object("model_sampling"), HostDenoiser(patched).schedule
        assert schedule.prediction == "flow"
        with torch.inference_mode(False):
            latents, noise = torch.randn(4, 16, 6, 6), torch.randn(4, 16, 6, 6)
            times = torch.tensor([0.05, 0.3, 0.6, 0.95])
            sigma, x_t = schedule.sigma(times), schedule.noisy(latents, noise, times)
            torch.testing.assert_close(x_t, sampling.noise_scaling(sigma, noise, latents), rtol=1e-5, atol=1e-5)
            target = schedule.target(latents, noise, times)
            torch.testing.assert_close(target, scale * noise - latents, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(sampling.calculate_denoised(sigma, target, x_t), latents, rtol=1e-4, atol=1e-4)
            for name in WEIGHTINGS:
                settings = ObjectiveSettings(weighting=name)
                weights = [time_weights(times, each, settings) for each in (schedule, expected)]
                torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(schedule.shifted(times, 3.0), expected.shifted(times, 3.0))


@claim
def a_model_with_scaled_noise_trains(folder: Path) -> None:
    def scaled(model: Any) -> None:
        model.model_sampling.set_noise_scale(8.0)

    with training("Lumina 2", folder / "scaled", change=scaled) as (denoiser, dataset):
        found = gradients(denoiser, dataset, targets="attention")
        assert found and all(value.isfinite().all() for value in found.values())


@claim
def times_follow_the_models_own_shift(folder: Path) -> None:
    """ComfyUI's nodes set a shift on a MODEL; training uses the same noise levels as sampling."""
    from comfy_extras.nodes_model_advanced import ModelSamplingFlux

    from streamcache.nodes.host.model.denoiser import HostDenoiser

    patcher = make_patcher("Flux")
    (shifted,) = ModelSamplingFlux().patch(patcher, 4.0, 4.0, 1024, 1024)
    half = torch.tensor([0.5])
    plain, moved = (HostDenoiser(p).schedule.sigma(half).item() for p in (patcher, shifted))
    assert abs(moved - shifted.get_model_object("model_sampling").percent_to_sigma(0.5)) < 1e-3
    assert moved > plain + 0.05, (plain, moved)


@claim
def a_model_that_maps_images_to_images_is_refused(folder: Path) -> None:
    import comfy.model_base

    from streamcache.errors import TrainError
    from streamcache.nodes.host.model.schedule import ModelSchedule

    for name in ("IMG_TO_IMG", "IMG_TO_IMG_FLOW"):
        try:
            ModelSchedule(comfy.model_base.model_sampling(None, comfy.model_base.ModelType[name]))
        except TrainError as refused:
            assert name in str(refused), refused
        else:
            raise AssertionError(f"{name} was accepted")


@claim
def every_family_trains_all_of_its_adapters_in_one_call_of_four_rows(folder: Path) -> None:
    for name in SMALL:
        with training(name, folder / "plain") as (denoiser, dataset):
            rows: list[int] = []
            model = denoiser.model.diffusion_model
            handle = model.register_forward_pre_hook(lambda module, args, rows=rows: rows.append(len(args[0])))
            found = gradients(denoiser, dataset)
            handle.remove()
            assert rows == ([4, 1, 1, 1, 1] if name in ONE_BY_ONE else [4]), (name, rows)
            network = build_network(denoiser, AdapterSettings(rank=2, targets="all"))
            silent = {key.split(".")[1] for key, _ in network.named_parameters() if key not in found}
            assert silent <= UNREAD.get(name, set()), (name, silent)
            assert {"attention", "attention+mlp", "all"} == set(denoiser.groups()), name


@claim
def every_family_calls_all_adapted_layers_in_training_and_for_sample_images(folder: Path) -> None:
    for name in SMALL:
        with training(name, folder / "called") as (denoiser, dataset):
            network = build_network(denoiser, AdapterSettings(rank=2, targets="all"))
            with network.attached(denoiser.adaptable()):
                assert len(network.uncalled()) == len(network)
                loss_of(denoiser, dataset, [0, 1])
                assert network.uncalled() == [], name
                network.forget_calls()
                with torch.no_grad():
                    denoiser.sample(make_samples(name, 1)[0]["conditioning"], SMALL[name].latent, 3, 1)
                assert network.uncalled() == [], name


@claim
def checkpointing_does_not_change_gradients_in_any_family(folder: Path) -> None:
    """Flux writes to its activations in place: without copies, a second pass would start from a changed input."""
    for name in SMALL:
        with training(name, folder / "checkpointed") as (denoiser, dataset):
            plain = gradients(denoiser, dataset)
            assert denoiser.blocks(), name
            with checkpointed(denoiser.blocks()):
                again = gradients(denoiser, dataset)
            for key, value in plain.items():
                close(again[key], value, 1e-4, 1e-6, f"{name} {key}")


@claim
def every_family_predicts_the_same_in_a_batch_as_alone(folder: Path) -> None:
    for name in SMALL:
        with training(name, folder / "alone") as (denoiser, dataset), torch.no_grad():
            prepared = denoiser.prepare(dataset.read_batch([0, 1, 2, 3]))
            times = torch.tensor([0.2, 0.4, 0.6, 0.8])
            together = denoiser.predict(prepared.latents, times, prepared.conditioning)
            for i in range(4):
                one = denoiser.prepare(dataset.read_batch([i]))
                alone = denoiser.predict(one.latents, times[i : i + 1], one.conditioning)
                torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-3, atol=1e-4)


@claim
def sdxl_gets_each_samples_own_sizes(folder: Path) -> None:
    """Core passes the first bucket's size for every sample (its defect 11)."""
    with training("SDXL", folder / "sizes") as (denoiser, dataset):
        prepared = denoiser.prepare(dataset.read_batch([2, 0]))
        found = prepared.conditioning[0].inputs["y"]
        for row, index in enumerate([2, 0]):
            pooled = dataset[index].realize().conditioning[0][1]["pooled_output"]
            told = {"width": 900 + index, "height": 600, "crop_w": 8 * index, "crop_h": 0}
            sizes = {**told, "target_width": 64, "target_height": 64}
            expected = denoiser.model.encode_adm(pooled_output=pooled, device="cpu", **sizes)
            torch.testing.assert_close(found[row : row + 1], expected)


@claim
def the_guidance_of_a_conditioning_overrides_the_setting(folder: Path) -> None:
    with training("Flux", folder / "guidance") as (denoiser, dataset):
        batch = dataset.read_batch([0, 1])
        batch.conditionings[1][0][1]["guidance"] = 4.5
        denoiser.guidance = 1.5
        inputs = denoiser.prepare(batch).conditioning[0].inputs
        assert inputs["guidance"].tolist() == [1.5, 4.5]


@claim
def a_model_without_learned_guidance_gets_the_same_value_as_in_sampling(folder: Path) -> None:
    def schnell(model: Any) -> None:
        model.diffusion_model.params.guidance_embed = False
        model.diffusion_model.guidance_in = torch.nn.Identity()

    for name, change, sampled in (("Chroma", lambda model: None, 0.0), ("Flux", schnell, 3.5)):
        with training(name, folder / "no guidance", change=change) as (denoiser, dataset):
            batch = dataset.read_batch([0, 1])
            found = denoiser.prepare(batch).conditioning[0].inputs["guidance"]
            assert found.tolist() == [sampled, sampled], (name, found)
            batch.conditionings[1][0][1]["guidance"] = 2.0
            found = denoiser.prepare(batch).conditioning[0].inputs["guidance"]
            assert found.tolist() == [sampled, 2.0], (name, found)


def loss_of_attached(denoiser: Any, dataset: Any) -> torch.Tensor:
    network = build_network(denoiser, AdapterSettings(rank=2, targets="attention", seed=5))
    with network.attached(denoiser.adaptable()):
        return loss_of(denoiser, dataset, [0, 1, 2, 3])


def same(kept: torch.Tensor, weight: torch.Tensor) -> bool:
    return any(torch.equal(kept.float().reshape(shape.shape), shape) for shape in (weight, weight.mT))


@claim
def weights_in_another_precision_are_not_kept_for_the_backward_pass(folder: Path) -> None:
    """The gradients equal those of the same weights in compute precision; copies of the weights are not kept."""

    def halve(model: Any) -> None:
        for module in model.diffusion_model.modules():
            if hasattr(module, "comfy_cast_weights"):
                module.comfy_cast_weights = True
                for name, value in module.named_parameters(recurse=False):
                    setattr(module, name, torch.nn.Parameter(value.half(), requires_grad=False))

    def halve_and_back(model: Any) -> None:
        for value in model.diffusion_model.parameters():
            value.copy_(value.half())

    for name in ("SDXL", "Flux"):
        with training(name, folder / "whole", change=halve_and_back) as (denoiser, dataset):
            expected = gradients(denoiser, dataset, targets="attention")
        with training(name, folder / "half", change=halve) as (denoiser, dataset):
            kept: list[torch.Tensor] = []
            with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):
                loss_of_attached(denoiser, dataset)
            weights = [m.weight.float() for m in denoiser.adaptable().values()]
            copies = [k.shape for k in kept for w in weights if k.numel() == w.numel() and same(k, w)]
            assert kept and not copies, (name, copies)
            found = gradients(denoiser, dataset, targets="attention")
        for key, value in expected.items():
            close(found[key], value, 2e-3, 1e-5, f"{name} {key}")


@claim
def quantized_weights_of_the_host_train_without_a_copy(folder: Path) -> None:
    """A mixed-precision checkpoint: fp8 weights in ComfyUI's own tensor type."""
    with training("Flux", folder / "quantized", change=quantize) as (denoiser, dataset):
        kinds = {type(m.weight).__name__ for m in denoiser.adaptable().values()}
        assert kinds == {"Parameter", "QuantizedTensor"}, kinds
        found = gradients(denoiser, dataset)
    with training("Flux", folder / "not quantized") as (denoiser, dataset):
        expected = gradients(denoiser, dataset)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        likeness = torch.nn.functional.cosine_similarity(found[key].flatten(), value.flatten(), dim=0)
        assert likeness > 0.8, (key, likeness)


def quantize(model: Any) -> None:
    """Replace linear layers of a Flux model by quantized ones."""
    import comfy.ops

    operations = comfy.ops.mixed_precision_ops({"mixed_ops": True}, torch.float32)
    for path, module in list(model.diffusion_model.named_modules()):
        if path.startswith("double_blocks") and isinstance(module, torch.nn.Linear):
            parent, _, name = path.rpartition(".")
            setattr(model.diffusion_model.get_submodule(parent), name, _quantized(module, operations))


def _quantized(linear: torch.nn.Linear, operations: Any) -> torch.nn.Module:
    weight = linear.weight
    scale = weight.abs().amax() / torch.finfo(torch.float8_e4m3fn).max
    made = operations.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None, dtype=torch.float32)
    notes = torch.tensor(list(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8)
    state = {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale, "comfy_quant": notes}
    made.load_state_dict(state | ({"bias": linear.bias} if linear.bias is not None else {}), strict=False)
    return made


@claim
def weights_of_a_foreign_tensor_type_train_as_gguf_loaders_make_them(folder: Path) -> None:
    """Packed weights in a tensor class of another pack, unpacked at each use; core cannot copy such a model."""
    import comfy.ops

    class Packed(torch.Tensor):
        def detach(self) -> "Packed":
            return self

    class Linear(comfy.ops.manual_cast.Linear):
        def forward_comfy_cast_weights(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight.as_subclass(torch.Tensor).to(x.dtype) / self.weight.scale
            return torch.nn.functional.linear(x, weight, self.bias)

    def pack(model: Any) -> None:
        for module in model.diffusion_model.modules():
            if type(module) is comfy.ops.disable_weight_init.Linear:
                module.__class__ = Linear
                packed = (module.weight * 64).half().as_subclass(Packed)
                packed.scale = 64.0
                module.weight = torch.nn.Parameter(packed, requires_grad=False)

    for name in ("Flux", "Qwen-Image"):
        with training(name, folder / "packed", change=pack) as (denoiser, dataset):
            assert not any(m.weight.is_inference() for m in denoiser.adaptable().values())
            found = gradients(denoiser, dataset)
        with training(name, folder / "unpacked") as (denoiser, dataset):
            expected = gradients(denoiser, dataset)
        for key, value in expected.items():
            close(found[key], value, 0.05, 1e-3, f"{name} {key}")
    try:
        make_patcher("Flux").clone(force_deepcopy=True)
    except RuntimeError:
        return
    raise AssertionError("core could have copied this model")


@claim
def adapters_export_to_what_the_hosts_own_loader_applies(folder: Path) -> None:
    """In every family and kind: the live adapter and the exported file in ComfyUI's loader predict the same."""
    import comfy.sd

    from streamcache.lora_train.export import to_tensors
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    for name in SMALL:
        # From rank 100 on, LoKr has whole matrices on every layer of these models.
        for kind, rank in (("lora", 2), ("loha", 2), ("lokr", 2), ("lokr", 100), ("oft", 2)):
            with training(name, folder / f"{kind}{rank}") as (denoiser, dataset), torch.no_grad():
                network = build_network(denoiser, AdapterSettings(kind=kind, rank=rank, targets="all", seed=5))
                for value in network.parameters():
                    value += 0.2 * torch.randn(value.shape, generator=torch.Generator().manual_seed(6))
                base = loss_of(denoiser, dataset, [0, 1])
                with network.attached(denoiser.adaptable()):
                    live = loss_of(denoiser, dataset, [0, 1])
                tensors = to_tensors(network, denoiser, "comfyui")
            patched, _ = comfy.sd.load_lora_for_models(denoiser.patcher, None, tensors, 1.0, 0.0)
            loaded = HostDenoiser(patched)
            with torch.inference_mode(False), loaded.session(), torch.no_grad():
                loaded.prepare_for(dataset)
                applied = loss_of(loaded, dataset, [0, 1])
            assert abs(live - base) > 1e-3, (name, kind, live, base)
            close(live, applied, 1e-4, 1e-5, f"{name} {kind}")


def random_lora(patcher: Any, prefixes: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A LoRA of rank 2 with these prefixes, some with an alpha, for the rows that ComfyUI's loader gives them."""
    generator, tensors, weights = torch.Generator().manual_seed(8), {}, patcher.model.state_dict()
    for number, (prefix, target) in enumerate(prefixes.items()):
        key, offset = (target, None) if isinstance(target, str) else target[:2]
        outputs = weights[key].shape[0] if offset is None else offset[2]
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(outputs, 2, generator=generator)
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(2, weights[key][0].numel(), generator=generator)
        if number % 3 == 0:
            tensors[f"{prefix}.alpha"] = torch.tensor(0.5)
    return tensors


def changes(patcher: Any) -> dict[str, torch.Tensor]:
    """What the patches of a MODEL add to each weight."""
    import comfy.lora

    weights = patcher.model.state_dict()
    return {
        key: comfy.lora.calculate_weight(patches, torch.zeros_like(weights[key]), key)
        for key, patches in patcher.patches.items()
    }


@claim
def a_lora_with_split_projections_continues_with_the_change_that_the_host_applies(folder: Path) -> None:
    """Names of diffusers for q, k, v, and for layers whose halves it swaps: fused on import, saved as one layer."""
    import comfy.lora
    import comfy.sd

    from streamcache.lora_train.adapters import split_lora
    from streamcache.lora_train.export import to_tensors

    split_layers = 0
    for name in SMALL:
        with training(name, folder / "split") as (denoiser, _):
            known = comfy.lora.model_lora_keys_unet(denoiser.model, {})
            outputs = {f"diffusion_model.{name}.weight": len(m.weight) for name, m in denoiser.adaptable().items()}
            parts = {
                prefix: target
                for prefix, target in known.items()
                if not isinstance(target, str)
                and prefix.startswith("transformer.")
                and target[0] in outputs
                # The table expects an MLP four times as wide as the model, which this Flux does not have.
                and (target[1] is None or sum(target[1][1:]) <= outputs[target[0]])
            }
            if not parts:
                continue
            tensors = random_lora(denoiser.patcher, parts)
            settings = AdapterSettings(rank=2, targets="attention")
            network = build_network(denoiser, settings, split_lora(tensors, where=name))
            assert not network.carried, list(network.carried)
            saved = to_tensors(network, denoiser, "comfyui")
            patched = [
                changes(comfy.sd.load_lora_for_models(denoiser.patcher, None, file, 1.0, 0.0)[0])
                for file in (tensors, saved)
            ]
        split_layers += len(patched[0])
        for key, expected in patched[0].items():
            assert expected.abs().max() > 0.1
            close(patched[1][key], expected, 1e-5, 1e-5, f"{name} {key}")
        assert not any(patched[1][key].any() for key in patched[1].keys() - patched[0].keys())
    assert split_layers > 8, split_layers


@claim
def j7_a_lora_with_the_names_of_diffusers_changes_what_the_own_one_changes(folder: Path) -> None:
    """Fused layers are split into the names that diffusers has for their rows; it continues with the same rank."""
    import comfy.sd

    from streamcache.errors import TrainError
    from streamcache.lora_train.adapters import split_lora
    from streamcache.lora_train.export import to_tensors

    named, split = [], 0
    for name in SMALL:
        for targets in ("all", "attention"):
            with training(name, folder / "named") as (denoiser, _), torch.no_grad():
                settings = AdapterSettings(rank=2, targets=targets, seed=5)
                network = build_network(denoiser, settings)
                for value in network.parameters():
                    value += 0.05 * torch.randn(value.shape, generator=torch.Generator().manual_seed(6))
                try:
                    theirs = to_tensors(network, denoiser, "diffusers")
                except TrainError as refused:  # no names for some layers
                    assert "has no name for" in str(refused), refused
                    continue
                ours = to_tensors(network, denoiser, "comfyui")
                again = build_network(denoiser, settings, split_lora(theirs, where=name))
                assert not again.carried and {len(one.factors.down) for _, one in again.items()} == {2}
                files = (ours, theirs, to_tensors(again, denoiser, "comfyui"))
                patched = [
                    changes(comfy.sd.load_lora_for_models(denoiser.patcher, None, f, 1.0, 0.0)[0]) for f in files
                ]
            named.append(name)
            split += len([key for key in theirs if key.endswith("lora_B.weight")]) - len(dict(network.items()))
            # ComfyUI's loader does not know the names that diffusers has now for the layers of a UNet.
            unet = next(iter(theirs)).startswith("unet.")
            assert patched[2].keys() == patched[0].keys() >= patched[1].keys(), name
            assert unet or patched[1].keys() == patched[0].keys(), (name, patched[0].keys() - patched[1].keys())
            for key, expected in (pair for other in patched[1:] for pair in other.items()):
                close(expected, patched[0][key], 1e-5, 1e-6, f"{name} {key}")
            break
    assert len(named) >= 3 and split > 8, (named, split)


@claim
def j7_flux_has_the_names_of_the_diffusers_model_that_reads_it(folder: Path) -> None:
    """ComfyUI knows some layers of Flux.1 and Flux.2 by the names of both. diffusers 0.42 reads and applies these."""
    from streamcache.lora_train.export import to_tensors

    block, single = "transformer.transformer_blocks.0", "transformer.single_transformer_blocks.0"
    attention = [f"{block}.attn.{name}" for name in ("to_out.0", "to_add_out")] + [
        f"{block}.attn.{kind}" for kind in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj")
    ]
    feeds = [f"{block}.{side}.{name}" for side in ("ff", "ff_context") for name in ("net.0.proj", "net.2")]
    parts = [f"{single}.{name}" for name in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp", "proj_out")]
    feeds_2 = [f"{block}.{side}.{name}" for side in ("ff", "ff_context") for name in ("linear_in", "linear_out")]
    whole = [f"{single}.attn.{name}" for name in ("to_qkv_mlp_proj", "to_out")]
    for name, expected in {"Flux": [*feeds, *parts], "Flux.2": [*feeds_2, *whole]}.items():
        with training(name, folder / "flux") as (denoiser, _):
            network = build_network(denoiser, AdapterSettings(rank=2, targets="attention+mlp", seed=5))
            found = {key.partition(".lora_")[0] for key in to_tensors(network, denoiser, "diffusers")}
        modulation = {key for key in found if ".norm" in key}
        assert found - modulation == {*attention, *expected}, (name, found)


@claim
def j7_sdxl_has_the_names_of_diffusers_in_whatever_order_the_host_lists_them(folder: Path) -> None:
    """ComfyUI keeps two names for the layers of the size embedding in a set, whose order differs per process."""
    import comfy.utils

    from streamcache.nodes.host.model.borrowed import changed

    both = sorted(comfy.utils.UNET_MAP_BASIC)
    expected = {f"label_emb.0.{i}": f"unet.add_embedding.linear_{n}" for i, n in ((0, 1), (2, 2))} | {
        "time_embed.0": "unet.time_embedding.linear_1",
        "time_embed.2": "unet.time_embedding.linear_2",
        "input_blocks.0.0": "unet.conv_in",
        "out.2": "unet.conv_out",
    }
    with training("SDXL", folder / "sdxl") as (denoiser, _):
        for listed in (both, both[::-1]):
            with changed(comfy.utils, "UNET_MAP_BASIC", listed):
                names = denoiser.export_names("diffusers")
            assert names.keys() == denoiser.adaptable().keys(), denoiser.adaptable().keys() - names.keys()
            assert {name: names[name] for name in expected} == expected, names
            blocks = ("unet.down_blocks.", "unet.mid_block.", "unet.up_blocks.")
            assert all(name.startswith(blocks) for ours, name in names.items() if ours not in expected), names


@claim
def j6_images_without_a_stored_size_have_that_of_the_models_own_vae(folder: Path) -> None:
    from streamcache.lora_train import TrainConfig
    from streamcache.lora_train.objective import RULES
    from streamcache.lora_train.parts import make_stepper
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    for name, pixels in {"SDXL": 64, "Flux": 64, "Flux.2": 64, "Wan": 64, "LTXV": 128}.items():
        with CacheWriter(folder / f"unsized {name}") as writer:
            writer.add(**make_samples(name, 1)[0], source="1.png")
        dataset, denoiser = open_cache(folder / f"unsized {name}"), HostDenoiser(make_patcher(name))
        config = TrainConfig(rank=2, resolution_shift="flux")
        stepper = make_stepper(denoiser, dataset, config, config.objective(RULES), None)
        assert stepper.sizes.pixels([0]) == [pixels * pixels], (name, stepper.sizes.pixels([0]))
