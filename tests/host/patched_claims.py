"""Scenario: models that other packs have patched or changed, and layers that ComfyUI fuses when it samples."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import comfy.sd
import torch
from safetensors.torch import save_file

from streamcache.errors import TrainError
from streamcache.lora_train.adapters import AdapterSettings, build_network
from streamcache.lora_train.compute import attention_kernel
from streamcache.nodes.host.encoders import identity
from streamcache.nodes.host.model.attention import TrainingAttention, torch_attention
from streamcache.nodes.host.model.denoiser import HostDenoiser

from .claims import claim, hold
from .families import FAMILIES, TEXT_ENCODER, call
from .family_claims import gradients, loss_of, training
from .small_families import make_patcher, make_samples

ATTENTION = ("Wan", "Flux", "Qwen-Image")


def run(base: Path) -> dict:
    return hold("patched_claims", globals(), base / "patched")


def detached(*args: Any, **kwargs: Any) -> torch.Tensor:
    """An attention without a gradient, as sage attention is."""
    from comfy.ldm.modules.attention import attention_pytorch

    with torch.no_grad():
        return attention_pytorch(*args, **kwargs)


def halved(*args: Any, **kwargs: Any) -> torch.Tensor:
    """An attention that another pack changed, with a gradient."""
    from comfy.ldm.modules.attention import attention_pytorch

    return attention_pytorch(*args, **kwargs) / 2


@contextlib.contextmanager
def overridden(name: str, folder: Path, attention: Any) -> Iterator[tuple[Any, Any]]:
    """As `training`, with the attention of the MODEL replaced as by core's node."""
    with training(name, folder) as (plain, dataset):
        plain.patcher.set_model_optimized_attention(attention)
        patcher = plain.patcher.clone()
    denoiser = HostDenoiser(patcher)
    with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
        denoiser.prepare_for(dataset)
        yield denoiser, dataset


@claim
def an_attention_without_a_gradient_is_replaced_while_training(base: Path) -> None:
    for name in ATTENTION:
        with training(name, base / "plain") as (denoiser, dataset):
            expected = gradients(denoiser, dataset)
        with overridden(name, base / "detached", detached) as (denoiser, dataset):
            found = gradients(denoiser, dataset)
        assert found.keys() == expected.keys(), (name, len(found), len(expected))
        assert all(torch.equal(found[key], expected[key]) for key in expected), name


@claim
def an_attention_with_a_gradient_is_kept(base: Path) -> None:
    with training("Wan", base / "plain") as (denoiser, dataset):
        plain = float(loss_of(denoiser, dataset, [0, 1]))
    with overridden("Wan", base / "halved", halved) as (denoiser, dataset):
        changed, found = float(loss_of(denoiser, dataset, [0, 1])), gradients(denoiser, dataset)
    assert abs(plain - changed) > 1e-4 and found


@claim
def a_kernel_of_the_settings_gives_the_same_gradients_and_comes_before_an_override(base: Path) -> None:
    for name in ATTENTION:
        with training(name, base / "plain") as (plain, dataset):
            expected = gradients(plain, dataset)
            plain.patcher.set_model_optimized_attention(halved)
            patcher = plain.patcher.clone()
        for kernel in ("math", "flash"):
            denoiser = HostDenoiser(patcher, attention=kernel)
            with torch.inference_mode(False), torch.enable_grad(), denoiser.session(), attention_kernel(kernel):
                denoiser.prepare_for(dataset)
                torch.testing.assert_close(gradients(denoiser, dataset), expected, rtol=1e-4, atol=1e-6)


@claim
def a_kernel_of_the_settings_computes_what_comfyuis_attention_does(_: Path) -> None:
    made, size, queries, keys = torch.Generator().manual_seed(7), 8, 5, 7
    shapes = [(queries, keys), (2, queries, keys), (2, 1, keys), (2, 1, queries, keys), (2, 4, queries, keys)]
    masks = [None, torch.ones(queries, keys).tril(2).bool(), *(torch.randn(shape, generator=made) for shape in shapes)]
    flags = list(itertools.product((False, True), repeat=2))
    for key_heads, mask, scale, (split, kept) in itertools.product((4, 2, 1), masks, (None, 0.7), flags):
        rows = ((queries, 4), (keys, key_heads), (keys, key_heads))
        given = [torch.randn(2, length, heads * size, generator=made) for length, heads in rows]
        if split:
            given = [value.unflatten(-1, (-1, size)).transpose(1, 2) for value in given]
        options = {"mask": mask, "skip_reshape": split, "skip_output_reshape": kept}
        options |= {} if scale is None else {"scale": scale}
        options |= {"enable_gqa": True} if key_heads < 4 else {}
        expected = torch_attention(*given, 4, **options)
        found = TrainingAttention(chosen=True)(None, *given, 4, **options)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@claim
def an_attention_without_a_gradient_for_its_keys_is_replaced(_: Path) -> None:
    def partly(function: Any, q: torch.Tensor, k: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return halved(q, k.detach(), *args, **kwargs)

    with torch.inference_mode(False), torch.enable_grad():
        given = [value.requires_grad_() for value in torch.randn(3, 1, 4, 16)]
        assert torch.equal(TrainingAttention(partly)(None, *given, 2), torch_attention(*given, 2))


def asserting(*args: Any, **kwargs: Any) -> torch.Tensor:
    """An attention for half precision only, which refuses other dtypes as sage attention does."""
    assert args[0].dtype in (torch.float16, torch.bfloat16), "Input tensors must be float16 or bfloat16"
    return detached(*args, **kwargs)


@claim
def an_attention_that_refuses_the_inputs_is_replaced_while_training(base: Path) -> None:
    with training("Wan", base / "plain") as (denoiser, dataset):
        expected = gradients(denoiser, dataset)
    with overridden("Wan", base / "asserting", asserting) as (denoiser, dataset):
        found = gradients(denoiser, dataset)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@claim
def an_attention_without_a_gradient_for_some_calls_is_replaced_in_those(_: Path) -> None:
    """Kernels are chosen by mask and length; the order of the calls makes no difference."""

    def choosing(function: Any, q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        masked = kwargs.get("mask") is not None or len(args) > 3
        return (detached if masked or q.shape[1] > 4 else halved)(q, *args, **kwargs)

    def values(length: int) -> list[torch.Tensor]:
        made = torch.Generator().manual_seed(length)
        return [torch.randn(1, length, 16, generator=made).requires_grad_() for _ in range(3)]

    with torch.inference_mode(False), torch.enable_grad():
        short, long, mask = values(4), values(9), torch.zeros(4, 4)
        plain = torch_attention(*short, 2)
        for calls in ("short long masked", "masked long short"):
            attention = TrainingAttention(choosing)
            found = {}
            for call in calls.split() * 2:
                given = long if call == "long" else short
                masks = {"mask": mask} if call == "masked" else {}
                found[call] = attention(None, *given, 2, **masks)
                assert found[call].requires_grad, (calls, call)
            assert attention(None, *short, 2, mask).requires_grad
            assert torch.equal(found["short"], plain / 2) and torch.equal(found["masked"], plain), calls


@claim
def an_attention_that_runs_out_of_memory_ends_the_training(_: Path) -> None:
    def exhausted(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory left")

    try:
        TrainingAttention(exhausted)(None, *torch.randn(3, 1, 4, 16), 2)
    except torch.OutOfMemoryError:
        return
    raise AssertionError("torch's attention was used instead")


def make_int8(model: Any) -> None:
    """The second layer of each feed-forward, as an INT8 checkpoint has it."""
    import comfy.ops

    operations = comfy.ops.mixed_precision_ops({"mixed_ops": True}, torch.float32)
    for path, linear in list(model.diffusion_model.named_modules()):
        if path.endswith("ffn.2"):
            made = operations.Linear(linear.in_features, linear.out_features, bias=True, dtype=torch.float32)
            scale = linear.weight.abs().amax() / 127
            state = {
                "weight": (linear.weight / scale).round().to(torch.int8),
                "weight_scale": scale,
                "comfy_quant": torch.tensor(list(b'{"format": "int8_tensorwise"}'), dtype=torch.uint8),
                "bias": linear.bias,
            }
            made.load_state_dict(state, strict=False)
            model.diffusion_model.get_submodule(path.rpartition(".")[0])[2] = made


@claim
def sample_images_show_adapters_on_layers_that_are_fused_without_training(base: Path) -> None:
    import comfy.ops

    fused: list[Any] = []
    original = comfy.ops.linear_input_act

    def noted(linear: Any, *args: Any) -> Any:
        fused.append(type(linear.weight).__name__)
        return original(linear, *args)

    with training("Wan", base / "int8", change=make_int8) as (denoiser, _), torch.no_grad():
        words, shape = make_samples("Wan", 1)[0]["conditioning"], (16, 1, 8, 8)
        comfy.ops.linear_input_act = noted
        try:
            before = denoiser.sample(words, shape, 3, 2)
            assert set(fused) == {"QuantizedTensor"}, "the host's fused path was not used"
            network = build_network(denoiser, AdapterSettings(rank=2, targets="*ffn.2", seed=5))
            for value in network.parameters():
                value += 0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(6))
            with network.attached(denoiser.adaptable()):
                first, again = (denoiser.sample(words, shape, 3, 2) for _ in range(2))
            after = denoiser.sample(words, shape, 3, 2)
        finally:
            comfy.ops.linear_input_act = original
    assert float((first - before).abs().max()) > 1e-3, "the adapters had no effect"
    assert torch.equal(first, again)
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.05)


@claim
def another_packs_patch_on_the_sampling_survives_a_step(base: Path) -> None:
    with training("Flux", base / "sampling") as (denoiser, dataset):
        sampling = denoiser.model.model_sampling

        def own(sigma: Any, model_output: Any, model_input: Any) -> Any:
            return model_output

        sampling.calculate_denoised = own
        try:
            loss_of(denoiser, dataset, [0])
            assert vars(sampling).get("calculate_denoised") is own
        finally:
            vars(sampling).pop("calculate_denoised", None)
        loss_of(denoiser, dataset, [0])
        assert "calculate_denoised" not in vars(sampling)


@claim
def a_model_that_takes_sizes_refuses_a_batch_before_it_knows_its_dataset(base: Path) -> None:
    with training("SDXL", base / "sizes") as (_, dataset):
        denoiser = HostDenoiser(make_patcher("SDXL"))
        try:
            denoiser.prepare(dataset.read_batch([0]))
        except TrainError as error:
            assert "prepare_for" in str(error)
        else:
            raise AssertionError("trained without sizes")


@claim
def weights_that_another_pack_edits_in_place_have_another_identity(base: Path) -> None:
    (vae,) = call("VAELoader", vae_name=FAMILIES["flow"].vae)
    vae.patcher.cached_patcher_init = None  # as if no loader of ComfyUI had made it
    weights = dict(vae.first_stage_model.named_parameters())
    name, weight = max(weights.items(), key=lambda row: row[1].numel())
    hashed: list[int] = []
    original = identity.object_identity

    def counted(tensors: Any) -> str:
        hashed.append(sum(tensor.numel() for tensor in tensors.values()))
        return original(tensors)

    identity.object_identity = counted
    try:
        first = identity.vae_identity(vae)
        everything = hashed[-1]
        hashed.clear()
        assert identity.vae_identity(vae) == first
        assert everything not in hashed, "an unchanged model is not hashed again"
        kept = weight.clone()
        weight.mul_(1.01)
        assert identity.vae_identity(vae) != first, name
        weight.copy_(kept)
        assert identity.vae_identity(vae) == first
    finally:
        identity.object_identity = original


@claim
def weights_from_a_file_that_another_pack_edits_in_place_have_another_identity(base: Path) -> None:
    (vae,) = call("VAELoader", vae_name=FAMILIES["flow"].vae)
    (clip,) = call("CLIPLoader", clip_name=TEXT_ENCODER, type=FAMILIES["flow"].clip_type)
    file = base / "vae.safetensors"
    save_file(vae.first_stage_model.state_dict(), file)
    # As ComfyUI does for a VAE in one file.
    vae.patcher.cached_patcher_init = (comfy.sd.load_vae_patcher, (str(file), None, None))
    hashed: list[int] = []
    original = identity.object_identity

    def counted(tensors: Any) -> str:
        hashed.append(sum(tensor.numel() for tensor in tensors.values()))
        return original(tensors)

    identity.object_identity = counted
    try:
        for read, model, module in (
            (identity.vae_identity, vae, vae.first_stage_model),
            (identity.clip_identity, clip, clip.cond_stage_model),
        ):
            hashed.clear()
            everything = sum(weight.numel() for weight in module.state_dict().values())
            first = read(model)
            assert read(model) == first and max(hashed, default=0) < everything, "no whole weights are hashed"
            weight = max(module.parameters(), key=lambda weight: weight.numel())
            kept = weight.clone()
            weight.mul_(1.01)
            edited = read(model)
            assert edited != first and max(hashed, default=0) >= everything
            weight.mul_(1.01)
            assert read(model) not in (first, edited)
            weight.copy_(kept)
            assert read(model) == first
    finally:
        identity.object_identity = original


@claim
def a_lora_that_comfyui_applies_in_place_is_no_edit_by_another_pack(base: Path) -> None:
    (vae,) = call("VAELoader", vae_name=FAMILIES["flow"].vae)
    first = identity.vae_identity(vae)
    name = next(name for name in vae.first_stage_model.state_dict() if name.endswith("weight"))
    patched = vae.patcher.clone()
    patched.add_patches({name: (torch.ones_like(vae.first_stage_model.state_dict()[name]),)})
    patched.patch_model()
    try:
        assert identity.vae_identity(vae) == first
    finally:
        patched.unpatch_model()
    assert identity.vae_identity(vae) == first


@claim
def a_single_value_that_changes_is_noticed_where_torch_counts_writes(base: Path) -> None:
    with torch.inference_mode(False):
        module = torch.nn.Linear(300, 300)
        module.weight.requires_grad_(False)
        patcher = type("Patcher", (), {"backup": {}})()
        first = identity._weights(module, patcher)
        module.weight[7, 11] += 1
        assert identity._weights(module, patcher) != first
