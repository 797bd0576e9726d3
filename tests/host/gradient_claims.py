"""Scenario: families whose code was not written for training predict as the host does and have right gradients."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.lora_train import TrainConfig, open_run, train
from streamcache.lora_train.adapters import AdapterSettings, build_network
from streamcache.lora_train.memory import checkpointed

from .claims import claim, hold
from .family_claims import close, gradients, training
from .small_families import PADDED, SMALL, make_patcher, make_samples

# Kernels without a gradient; in-place writes that outlast a layer; a mask that the host's code takes for one row.
FUSED = ("Cosmos-Predict2", "Anima", "Ernie")
HARD = (*FUSED, "LTXV", "HunyuanVideo")
TIMES = (0.2, 0.35, 0.5, 0.65)


def run(base: Path) -> dict:
    return hold("gradient_claims", globals(), base / "gradients")


def two_lengths(name: str, folder: Path) -> Any:
    """Four samples, two of them with a longer caption, whose mask is longer too."""
    short, long = make_samples(name, 4), make_samples(name, 4, tokens=9)
    with CacheWriter(folder) as writer:
        for number in range(4):
            longer = number in (1, 2)  # not every other one: joined and sorted again, the rows would be in place
            sample = (long if longer else short)[number]
            extras = sample["conditioning"][0][1]
            if longer and "attention_mask" in extras:
                extras["attention_mask"] = torch.nn.functional.pad(PADDED, (2, 0), value=1)
            writer.add(**sample, source=f"{number}.png", original_size=(64, 64), crop=(0, 0, 64, 64))
    return open_cache(folder)


def row_losses(denoiser: Any, dataset: Any, indices: list[int]) -> Tensor:
    """The loss of each row, whose noise and time are the same in every batch."""
    prepared = denoiser.prepare(dataset.read_batch(indices))
    times = torch.tensor([TIMES[i] for i in indices])
    shape = prepared.latents.shape[1:]
    noise = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in indices])
    x_t = denoiser.schedule.noisy(prepared.latents, noise, times)
    prediction = denoiser.predict(x_t, times, prepared.conditioning)
    return ((prediction - denoiser.schedule.target(prepared.latents, noise, times)) ** 2).flatten(1).mean(1)


def filled_network(denoiser: Any, targets: str = "all") -> Any:
    network = build_network(denoiser, AdapterSettings(rank=2, targets=targets, seed=5))
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for value in network.parameters():
            value += 0.05 * torch.randn(value.shape, generator=generator)
    return network


@claim
def the_prediction_of_a_training_is_that_of_the_hosts_own_forward(folder: Path) -> None:
    """The host's: in inference mode, not in training, with its kernels and its own attention; one row per call."""
    from streamcache.nodes.host.model import conditioning as conds

    for name in SMALL:
        with training(name, folder / "same") as (denoiser, dataset):
            prepared = denoiser.prepare(dataset.read_batch([0, 1]))
            times = torch.tensor([0.3, 0.6])
            sigma, x_t = denoiser.schedule.sigma(times), prepared.latents
            native = denoiser.predict(x_t.clone().requires_grad_(), times, prepared.conditioning).detach()
            found = denoiser.model.model_sampling.calculate_denoised(sigma, native, x_t)
            batch, model = dataset.read_batch([0, 1]), denoiser.model
            extras = [denoiser._extra_inputs(i, x_t.shape) for i in (0, 1)]
        rows = []
        for i in (0, 1):
            x, level = x_t[i : i + 1].clone(), sigma[i : i + 1].clone()
            (row,) = conds.join(model, x, batch.conditionings[i : i + 1], extras[i : i + 1])
            options = {"transformer_options": {"cond_or_uncond": [0], "sigmas": level, "uuids": [None]}}
            rows.append(model.apply_model(x, level, **row.inputs, **options).clone())
        expected = torch.cat(rows)
        error = (found - expected).abs().max() / expected.abs().max()
        assert torch.is_inference_mode_enabled() and error < 2e-6, (name, float(error))


@claim
def gradients_are_those_of_finite_differences(folder: Path) -> None:
    """Along the gradient of all adapters together, and of single layers before and behind a kernel."""
    for name in HARD:
        with training(name, folder / "differences") as (denoiser, dataset):
            network = filled_network(denoiser)
            with network.attached(denoiser.adaptable()):
                row_losses(denoiser, dataset, [0, 1]).mean().backward()
                everything = dict(network.named_parameters())
                assert all(value.grad is not None for value in everything.values()), name
                layers = denoiser.groups()["attention"][:2]
                parts = {layer: list(network.adapters[layer.replace(".", "/")].parameters()) for layer in layers}
                for place, values in {"all": list(everything.values()), **parts}.items():
                    slope = torch.stack([value.grad.norm() for value in values]).norm().double()
                    found = []
                    for size in (0.01, -0.01):
                        moved = [size * value.grad / slope.float() for value in values]
                        with torch.no_grad():
                            torch._foreach_add_(values, moved)
                            found.append(row_losses(denoiser, dataset, [0, 1]).double().mean())
                            torch._foreach_sub_(values, moved)
                    close((found[0] - found[1]) / 0.02, slope, 0.02, 3e-4, f"{name} {place}")


@claim
def a_batch_of_four_has_the_mean_of_the_gradients_of_its_rows(folder: Path) -> None:
    """Also with captions of two lengths, which are one call per length, and with checkpointing."""
    for name in HARD:
        dataset = two_lengths(name, folder / name)
        with training(name, folder / "rows") as (denoiser, _):
            denoiser.prepare_for(dataset)
            network = filled_network(denoiser, "attention")
            with network.attached(denoiser.adaptable()):
                row_losses(denoiser, dataset, [0, 1, 2, 3]).mean().backward()
                together = taken(network)
                with checkpointed(denoiser.blocks()):
                    row_losses(denoiser, dataset, [0, 1, 2, 3]).mean().backward()
                again = taken(network)
                for i in range(4):
                    (row_losses(denoiser, dataset, [i]).mean() / 4).backward()
                apart = taken(network)
        assert together.keys() == apart.keys() == again.keys()
        for key, value in apart.items():
            scale = float(value.abs().max())
            close(together[key], value, 1e-4, 1e-5 * scale + 1e-7, f"{name} {key}")
            close(again[key], together[key], 1e-4, 1e-5 * scale + 1e-7, f"{name} {key} checkpointed")


def taken(network: Any) -> dict[str, Tensor]:
    found = {key: value.grad for key, value in network.named_parameters() if value.grad is not None}
    for value in network.parameters():
        value.grad = None
    return found


@claim
def rows_that_the_hosts_code_takes_one_by_one_are_tried_together_once(folder: Path) -> None:
    """HunyuanVideo writes the masks of all rows into a mask for one. Without masks, the batch stays one call."""
    dataset = two_lengths("HunyuanVideo", folder / "masks")
    with training("HunyuanVideo", folder / "once") as (denoiser, _):
        rows: list[int] = []
        model = denoiser.model.diffusion_model
        handle = model.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
        for _ in range(2):
            row_losses(denoiser, dataset, [0, 1, 2, 3])
        assert rows == [2, 1, 1, 2, 1, 1, 1, 1, 1, 1], rows  # each length for itself
        rows.clear()
        batch = dataset.read_batch([0, 3])
        for conditioning in batch.conditionings:
            del conditioning[0][1]["attention_mask"]
        prepared = denoiser.prepare(batch)
        denoiser.predict(prepared.latents, torch.tensor([0.2, 0.4]), prepared.conditioning)
        assert rows == [2], rows
        handle.remove()


@claim
def an_error_of_a_model_is_raised_for_its_first_row(folder: Path) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("of the model itself")

    with training("HunyuanVideo", folder / "broken") as (denoiser, dataset):
        handle = denoiser.model.diffusion_model.register_forward_pre_hook(broken)
        try:
            row_losses(denoiser, dataset, [0, 1])
        except RuntimeError as error:
            assert "of the model itself" in str(error)
        else:
            raise AssertionError("the error was swallowed")
        handle.remove()
        assert row_losses(denoiser, dataset, [0, 1]).isfinite().all()


@claim
def a_training_lowers_the_loss_and_its_file_changes_the_host_the_same_way(folder: Path) -> None:
    import comfy.sd
    import comfy.utils

    from streamcache.nodes.host.model.denoiser import HostDenoiser

    for name in HARD:
        dataset, patcher = two_lengths(name, folder / "trained" / name), make_patcher(name)
        denoiser = HostDenoiser(patcher)
        with torch.inference_mode(False), denoiser.session(), torch.no_grad():
            denoiser.prepare_for(dataset)
            before = row_losses(denoiser, dataset, [0, 1, 2, 3]).mean()
        config = TrainConfig(rank=4, batch_size=2, steps=20, learning_rate=1e-2, targets="all", seed=3)
        with open_run(folder / "runs", name, "new") as run:
            result = train(denoiser, dataset, config, run)
        file = comfy.utils.load_torch_file(str(result.lora), safe_load=True)
        patched, _ = comfy.sd.load_lora_for_models(patcher, None, file, 1.0, 0.0)
        loaded = HostDenoiser(patched)
        with torch.inference_mode(False), loaded.session(), torch.no_grad():
            loaded.prepare_for(dataset)
            after = row_losses(loaded, dataset, [0, 1, 2, 3]).mean()
        assert after < 0.97 * before, (name, before, after)


@claim
def ltxv_trains_in_every_precision_with_like_gradients(folder: Path) -> None:
    """In bf16, its norms copy to fp32; in fp32, autograd keeps what the next line overwrites."""
    from streamcache.nodes.host.model.denoiser import HostDenoiser

    found: dict[str, dict[str, Tensor]] = {}
    with training("LTXV", folder / "precision") as (_, dataset):
        pass
    for precision in ("fp32", "bf16"):
        denoiser = HostDenoiser(make_patcher("LTXV"), precision=precision)
        with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
            denoiser.prepare_for(dataset)
            with denoiser.precision.autocast():
                found[precision] = gradients(denoiser, dataset)
            with checkpointed(denoiser.blocks()), denoiser.precision.autocast():
                again = gradients(denoiser, dataset)
        for key, value in found[precision].items():
            close(again[key], value, 1e-3, 1e-6, f"{precision} {key}")
    assert found["fp32"].keys() == found["bf16"].keys()
    for key, value in found["fp32"].items():
        likeness = nn.functional.cosine_similarity(found["bf16"][key].flatten(), value.flatten(), dim=0)
        assert likeness > 0.9, (key, likeness)


class Writer(nn.Module):
    """A block that overwrites what functions outside of its layers have got, in all the ways that models do."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.outer, self.way = nn.Linear(6, 6), nn.Linear(6, 6), way

    def forward(self, x: Tensor, scale: Tensor, *, shift: Tensor) -> Tensor:
        if self.way == "added":
            x += self.inner(nn.functional.rms_norm(x, (6,))) * scale
            x.addcmul_(self.outer(x.sin()), shift)
            return x
        if self.way == "half":
            left, right = x[..., :3], x[..., 3:]
            y = torch.cat([left.exp(), right * right], dim=-1)
            x[..., :3] += self.inner(y)[..., :3]
            left.mul_(scale[..., :3] + 1)
            return self.outer(x) + left.sum() * shift
        if self.way == "both":  # its input, and what it has made itself
            y = self.inner(x)
            z, w = y.sin(), x.sin()
            y += 1
            x += z
            return self.outer(x * y + w) * scale + shift
        if self.way == "set":
            y = self.inner(x).clone()
            z = y.sin()
            y[..., :2] = scale[..., :2]
            return self.outer(y * z) + shift
        y = self.inner(x * scale)  # "made": it overwrites what it has made itself
        z = y.cos()
        y += z * shift
        y *= y.sin()
        return self.outer(y)


class Rewritten(Writer):
    """The same without writes in place."""

    def forward(self, x: Tensor, scale: Tensor, *, shift: Tensor) -> Tensor:
        if self.way == "added":
            x = x + self.inner(nn.functional.rms_norm(x, (6,))) * scale
            return x + self.outer(x.sin()) * shift
        if self.way == "half":
            left, right = x[..., :3], x[..., 3:]
            y = torch.cat([left.exp(), right * right], dim=-1)
            left = (left + self.inner(y)[..., :3]) * (scale[..., :3] + 1)
            return self.outer(torch.cat([left, right], dim=-1)) + left.sum() * shift
        if self.way == "both":
            y = self.inner(x)
            return self.outer((x + y.sin()) * (y + 1) + x.sin()) * scale + shift
        if self.way == "set":
            y = self.inner(x)
            return self.outer(torch.cat([scale[..., :2], y[..., 2:]], dim=-1) * y.sin()) + shift
        y = self.inner(x * scale)
        y = y + y.cos() * shift
        return self.outer(y * y.sin())


@claim
def blocks_that_overwrite_what_autograd_keeps_have_right_gradients(folder: Path) -> None:
    from streamcache.nodes.host.model.inplace import Blocks

    with torch.inference_mode(False), torch.enable_grad():
        for way in ("added", "half", "both", "set", "made"):
            torch.manual_seed(4)
            model = nn.ModuleList([Writer(way), Writer(way)]).double()
            other = nn.ModuleList([Rewritten(way), Rewritten(way)]).double()
            other.load_state_dict(model.state_dict())
            x, scale, shift = (torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True) for _ in range(3))

            def apply(blocks: nn.ModuleList, given: tuple = (x, scale, shift)) -> Tensor:
                x, scale, shift = given
                for block in blocks:
                    x = block(x.clone(), scale, shift=shift)
                return x

            expected = torch.autograd.grad(apply(other).square().sum(), list(other.parameters()))
            blocks = Blocks(model)
            with blocks.wrapped():
                with torch.no_grad(), blocks.watched():
                    apply(model)
                with torch.no_grad(), blocks.watched_with_gradients([b.inner for b in model]):
                    apply(model)
                for around in (lambda _: checkpointed([]), checkpointed):
                    with around(model):
                        found = torch.autograd.grad(apply(model).square().sum(), list(model.parameters()))
                    for one, two in zip(found, expected, strict=True):
                        close(one, two, 1e-10, 1e-12, way)


@claim
def the_trial_before_the_first_step_keeps_no_tensors(folder: Path) -> None:
    def tensors() -> int:
        gc.collect()
        return sum(type(value) is Tensor for value in gc.get_objects())

    for name in ("Wan", "LTXV"):
        with training(name, folder / "kept") as (denoiser, dataset):
            before = tensors()
            denoiser.prepare_for(dataset)
            assert tensors() <= before, (name, before, tensors())


@claim
def kernels_have_gradients_while_training_and_are_the_hosts_own_again_afterwards(folder: Path) -> None:
    import comfy.quant_ops

    library = comfy.quant_ops.ck
    before = dict(vars(library))
    with training("Ernie", folder / "kernels"):
        replaced = {name for name, value in vars(library).items() if value is not before.get(name)}
        assert {"rms_rope_split_half", "apply_rope_split_half", "rms_rope", "rms_adaln"} <= replaced, replaced
        q, k, scale = (torch.randn(*shape, dtype=torch.float64) for shape in ((1, 3, 2, 8), (1, 3, 2, 8), (8,)))
        turn = torch.randn(1, 3, 1, 4, 2, 2, dtype=torch.float64)
        given: dict[str, tuple] = {
            "apply_rope": (q, k, turn), "apply_rope1": (q, turn), "apply_rope_split_half": (q, k, turn),
            "apply_rope_split_half1": (q, turn), "rms_rope": (q, k, turn, scale, scale), "rms_rope1": (q, turn, scale),
            "rms_rope_split_half": (q, k, turn, scale, scale), "rms_rope_split_half1": (q, turn, scale),
            "adaln": (q, scale, scale), "rms_adaln": (q, scale, scale),
        }  # fmt: skip
        for name, args in given.items():
            kernel: Callable = getattr(library, name)
            expected = before[name](*(value.float() for value in args))
            leaves = [value.clone().requires_grad_() for value in args]
            found = kernel(*leaves)
            for one, two in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, expected))):
                close(one.detach().float(), two, 1e-6, 1e-6, name)
            assert torch.autograd.gradcheck(kernel, leaves), name
    assert all(vars(library)[name] is value for name, value in before.items())


@claim
def rows_with_one_conditioning_are_prepared_once_with_the_same_bits(folder: Path) -> None:
    """As for preservation and guided targets, and dropped captions among others."""
    from streamcache.lora_train.other_captions import with_conditionings
    from streamcache.nodes.host.model import conditioning as conds
    from streamcache.nodes.host.model.borrowed import changed

    calls: list[int] = []
    own = conds.encode

    def counted(*given: Any) -> dict[str, Any]:
        calls.append(1)
        return own(*given)

    for name in SMALL:
        with training(name, folder / "once") as (denoiser, dataset):
            if conds.takes_sizes(denoiser.model):  # its rows differ in their sizes, unless all are of one image
                batch = dataset.read_batch([0, 0, 0, 0])
            else:
                batch = dataset.read_batch([0, 1, 2, 3])
            first, other = batch.conditionings[:2]
            for words, expected in (([first] * 4, 1), ([first, other, first, first], 2)):
                found = []
                for shared in (words, [[[text, dict(extras)] for text, extras in entries] for entries in words]):
                    calls.clear()
                    with changed(conds, "encode", counted):
                        prepared = denoiser.prepare(with_conditionings(batch, shared))
                    assert len(calls) == (expected if shared is words else 4), (name, len(calls))
                    times = torch.tensor(TIMES)
                    with torch.no_grad():
                        found.append(denoiser.predict(prepared.latents, times, prepared.conditioning))
                assert torch.equal(*found), name
