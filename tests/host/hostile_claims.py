"""Scenario: hosts that change what training relies on, as newer versions of ComfyUI do or could do.

Each claim changes the real ComfyUI, trains, and puts it back: the training either is right or ends with a sentence.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import comfy.cli_args
import comfy.ldm.modules.attention as host_attention
import comfy.ldm.wan.model
import comfy.lora
import comfy.ops
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.errors import TrainError
from streamcache.lora_train import Prompt, TrainConfig, build_network, open_run, read_lora, read_run_json, train
from streamcache.lora_train.adapters import AdapterSettings
from streamcache.nodes.host.model import frozen
from streamcache.nodes.host.model.denoiser import HostDenoiser

from .claims import claim, hold
from .family_claims import gradients, loss_of, training
from .patched_claims import detached, make_int8
from .small_families import make_patcher, make_samples


def run(base: Path) -> dict:
    return hold("hostile_claims", globals(), base / "hostile")


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """The hostile change."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name) if before is missing else setattr(owner, name, before)


def train_small(
    folder: Path, family: str = "Wan", change: Callable[[Any], None] = lambda model: None, **given: Any
) -> dict:
    """Two steps through the whole loop, with sample images after each; what run.json says then."""
    samples = make_samples(family, 4)
    with CacheWriter(folder / "cache") as writer:
        for number, sample in enumerate(samples):
            writer.add(**sample, source=f"{number}.png", original_size=(64, 64), crop=(0, 0, 64, 64))
    denoiser = HostDenoiser(make_patcher(family, change))
    drawn = given.pop("sample_every", 1)
    settings = {"steps": 2, "batch_size": 2, "rank": 2, "learning_rate": 1e-2, "sample_steps": 1, "targets": "all"}
    config = TrainConfig(**{**settings, "sample_every": drawn, **given})
    prompts = [Prompt("a cat", samples[0]["conditioning"], samples[0]["latent"]["samples"].shape[1:])]
    pictures = (lambda latents: [Image.new("RGB", (8, 8))]) if drawn else None
    with open_run(folder / "runs", "test", "new") as run:
        result = train(denoiser, open_cache(folder / "cache"), config, run, decode=pictures, prompts=prompts)
        assert result.step == config.steps and result.lora.exists()
    return read_run_json(folder / "runs" / "test")


def refused(folder: Path, **given: Any) -> str:
    try:
        train_small(folder, **given)
    except TrainError as error:
        return str(error)
    raise AssertionError("it trained")


class Experts(nn.Module, comfy.ops.CastWeightBiasOp):
    """A stack of experts as newer hosts have it: the sizes of a linear, and no `forward`."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.weight = nn.Parameter(torch.zeros(count, outputs, inputs), requires_grad=False)
        self.bias = None


class CallableExperts(Experts):
    """A stack whose `forward` exists, although its model never calls it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight[0])


def with_experts(kind: type[Experts]) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for block in model.diffusion_model.blocks:
            block.ffn.experts = kind(4, 48, 64)  # WanFeedForward calls its first and third part only

    return change


@claim
def layer_stacks_of_experts_without_a_forward_are_no_targets(base: Path) -> None:
    change = with_experts(Experts)
    denoiser = HostDenoiser(make_patcher("Wan", change))
    assert not [name for name in denoiser.adaptable() if "experts" in name]
    train_small(base / "experts", change=change)


@claim
def layers_that_are_never_called_are_refused_with_the_targets_that_leave_them_out(base: Path) -> None:
    change = with_experts(CallableExperts)
    words = refused(base / "callable", change=change, sample_every=0)
    assert "are never called in training (blocks.0.ffn.experts, blocks.1.ffn.experts)" in words, words
    assert 'add "!blocks.*.ffn.experts" to the targets' in words, words
    train_small(base / "left-out", change=change, targets="all, !blocks.*.ffn.experts")


@claim
def layers_without_a_gradient_are_named_and_most_of_them_are_refused(base: Path) -> None:
    def cut(end: str) -> Callable[[Any], None]:
        """The input of these layers is detached, as behind an attention without a gradient."""

        def change(model: Any) -> None:
            for path, module in model.diffusion_model.named_modules():
                if path.endswith(end):
                    module.register_forward_pre_hook(lambda _, given: (given[0].detach(), *given[1:]))

        return change

    notes = train_small(base / "few", change=cut("0.self_attn.o"), targets="attention", sample_every=0)["notes"]
    names = ", ".join(f"blocks.0.self_attn.{part}" for part in "qkv")
    assert f"3 of 16 adapted layers get no gradient and stay as they are: {names}" in notes, notes
    words = refused(base / "most", change=cut("attn.o"), targets="attention", sample_every=0)
    assert "12 of 16 adapted layers get no gradient" in words and "remove the patch" in words, words


class Containers:
    """Attention of a newer host: models put their tensors into containers, which one function consumes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        packed = [host_attention.AttentionTensorContainer(value) for value in (q, k, v)]
        return self.function(*packed, *args, **kwargs)


def consuming(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A faster attention on containers, without a gradient."""
    return detached(q.take(), k.take(), v.take(), *args, **kwargs)


def same_gradients(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


def wan_gradients(folder: Path) -> dict[str, torch.Tensor]:
    with training("Wan", folder) as (denoiser, dataset):
        return gradients(denoiser, dataset)


@claim
def attention_inputs_in_containers_train_as_plain_ones(base: Path) -> None:
    expected = wan_gradients(base / "plain")
    attention = Containers(comfy.ldm.wan.model.optimized_attention)
    with replaced(comfy.ldm.wan.model, "optimized_attention", attention):
        same_gradients(wan_gradients(base / "containers"), expected)
        assert attention.calls
        train_small(base / "loop")


@claim
def an_override_that_consumes_containers_without_a_gradient_is_replaced(base: Path) -> None:
    expected = wan_gradients(base / "plain")
    attention = Containers(comfy.ldm.wan.model.optimized_attention)

    def fast(*args: Any, **kwargs: Any) -> torch.Tensor:
        return detached(*args, **kwargs)

    fast.container_function = consuming
    patcher = make_patcher("Wan")
    patcher.set_model_optimized_attention(fast)
    assert hasattr(patcher.model_options["transformer_options"]["optimized_attention_override"], "container_function")
    with training("Wan", base / "data") as (_, dataset):
        pass
    with replaced(comfy.ldm.wan.model, "optimized_attention", attention):
        denoiser = HostDenoiser(patcher)
        with torch.inference_mode(False), torch.enable_grad(), denoiser.session():
            denoiser.prepare_for(dataset)
            same_gradients(gradients(denoiser, dataset), expected)


@claim
def a_preferred_attention_without_a_gradient_is_not_used_in_training(base: Path) -> None:
    """Newer hosts: a layer prefers an attention, which is used unless the MODEL overrides it."""
    expected, preferred, inner = wan_gradients(base / "plain"), [], comfy.ldm.wan.model.optimized_attention

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "optimized_attention_override" in kwargs.get("transformer_options", {}):
            return inner(*args, **kwargs)
        preferred.append(1)
        return detached(*args, **{name: value for name, value in kwargs.items() if name != "transformer_options"})

    with replaced(comfy.ldm.wan.model, "optimized_attention", attention):
        same_gradients(wan_gradients(base / "preferred"), expected)
        assert not preferred
        train_small(base / "loop")
        assert preferred, "sample images may use it"


@claim
def layers_behind_an_attention_that_nothing_can_override_are_refused_by_name(base: Path) -> None:
    """The user prefers an attention without a gradient, and the model does not pass the MODEL's options on to it."""

    def preferred(*args: Any, **kwargs: Any) -> torch.Tensor:
        return detached(*args, **{name: value for name, value in kwargs.items() if name != "transformer_options"})

    with replaced(comfy.ldm.wan.model, "optimized_attention", preferred):
        words = refused(base / "no-options", targets="attention", sample_every=0)
    assert "12 of 16 adapted layers get no gradient (blocks.0.self_attn.q, " in words, words


def fused_act(linear: Any, x: torch.Tensor, act: str) -> torch.Tensor:
    """Uses a linear's weight without calling it, also in training."""
    weight, bias = comfy.ops.cast_bias_weight(linear, x)
    return torch.nn.functional.linear(torch.nn.functional.gelu(x, approximate="tanh"), weight, bias)


@claim
def layers_that_are_fused_in_training_are_refused_by_name(base: Path) -> None:
    with replaced(comfy.ops, "linear_input_act", fused_act):
        words = refused(base / "fused", sample_every=0)
        assert "2 of" in words and "(blocks.0.ffn.2, blocks.1.ffn.2)" in words, words
        assert '"!blocks.*.ffn.2"' in words, words
        train_small(base / "without", targets="all, !blocks.*.ffn.2")


@claim
def sample_images_of_an_int8_model_show_its_adapters(base: Path) -> None:
    fused: list[str] = []
    original = comfy.ops.linear_input_act

    def noted(linear: Any, *args: Any) -> Any:
        if not comfy.model_management.in_training:
            fused.append(type(linear.weight).__name__)
        return original(linear, *args)

    with replaced(comfy.ops, "linear_input_act", noted):
        train_small(base / "int8", change=make_int8)
    assert set(fused) == {"QuantizedTensor"}, "the host's fused path was not tried"


@claim
def sample_images_that_always_skip_an_adapted_layer_are_refused_by_name(base: Path) -> None:
    """A host whose fused path does not ask whether a model trains, but only without a gradient."""
    original = comfy.ops.linear_input_act

    def without_gradient(linear: Any, x: torch.Tensor, act: str) -> torch.Tensor:
        return original(linear, x, act) if torch.is_grad_enabled() else fused_act(linear, x, act)

    with replaced(comfy.ops, "linear_input_act", without_gradient):
        words = refused(base / "skipped")
    assert "are never called for sample images (blocks.0.ffn.2, blocks.1.ffn.2)" in words, words


def cast_weights(model: Any) -> None:
    """Weights in bf16, which are cast for each use."""
    for module in model.diffusion_model.modules():
        if isinstance(module, comfy.ops.disable_weight_init.Linear):
            module.comfy_cast_weights = True
            module.weight = nn.Parameter(module.weight.to(torch.bfloat16), requires_grad=False)


@claim
def a_host_whose_layers_cast_in_another_way_gives_the_same_gradients(base: Path) -> None:
    """Without the methods of 0.33, the gradient of a layer comes from its own `forward`."""
    found: list[dict[str, torch.Tensor]] = []
    for types in (frozen._host_types, lambda: (nn.Linear, nn.Conv3d)):
        with replaced(frozen, "_host_types", types), training("Wan", base / "cast", change=cast_weights) as given:
            found.append(gradients(*given))
    assert found[0].keys() == found[1].keys()
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, rtol=1e-4, atol=1e-6)


class Recorder:
    """In place of the host's compiler: records each call of a block that it would compile or replay."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.calls = 0

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            options = comfy.cli_args.args
            self.compiled += ["compiler"] if not getattr(options, "disable_comfy_compiler", True) else []
            self.compiled += ["CUDA graph"] if not getattr(options, "disable_cuda_graphs", True) else []
            return forward(*args, **kwargs)

        return wrapper


@claim
def the_hosts_compiler_is_off_in_steps_and_sample_images_and_on_again_after_it(base: Path) -> None:
    options, recorder = comfy.cli_args.args, Recorder()
    block = comfy.ldm.wan.model.WanAttentionBlock
    with (
        replaced(options, "disable_comfy_compiler", False),
        replaced(options, "disable_cuda_graphs", False),
        replaced(block, "forward", recorder.around(block.forward)),
    ):
        train_small(base / "compiler")
        assert recorder.calls and not recorder.compiled, recorder.compiled
        assert (options.disable_comfy_compiler, options.disable_cuda_graphs) == (False, False)
        refused(base / "failing", targets="nothing")
        assert (options.disable_comfy_compiler, options.disable_cuda_graphs) == (False, False)
        options.disable_comfy_compiler = True
        train_small(base / "off")
        assert options.disable_comfy_compiler is True, "the user's own choice stays"


@claim
def a_host_without_these_options_gets_none(base: Path) -> None:
    options = comfy.cli_args.args
    before = vars(options).copy()
    for name in ("disable_comfy_compiler", "disable_cuda_graphs"):
        vars(options).pop(name, None)
    try:
        bare = set(vars(options))
        train_small(base / "without", sample_every=0)
        assert set(vars(options)) == bare
    finally:
        vars(options).update(before)


class GateUp(nn.Module):
    """The MLP of Qwen-Image 2.1: both halves in one layer."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        operations = comfy.ops.disable_weight_init
        self.gate_up = operations.Linear(size, 2 * hidden, bias=False, dtype=torch.float32)
        self.out = operations.Linear(hidden, size, bias=False, dtype=torch.float32)
        made = torch.Generator().manual_seed(8)
        for layer in (self.gate_up, self.out):
            drawn = torch.randn(layer.weight.shape, generator=made) / layer.in_features**0.5
            layer.weight = nn.Parameter(drawn, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.out(torch.nn.functional.silu(gate) * up)


def fuse_mlps(model: Any) -> None:
    for block in model.diffusion_model.transformer_blocks:
        block.img_mlp = GateUp(64, 96)


def names_of_halves(model: Any, names: dict[str, Any]) -> dict[str, Any]:
    """As the loader of newer hosts: LoRAs address the halves of `gate_up` by their own names."""
    names = ORIGINAL_NAMES(model, names)
    for key, weight in model.state_dict().items():
        if key.endswith(".img_mlp.gate_up.weight"):
            layer, half = key.removeprefix("diffusion_model.").removesuffix(".gate_up.weight"), len(weight) // 2
            for prefix in ("", "transformer."):
                names.pop(f"{prefix}{layer}.gate_up", None)
                names[f"{prefix}{layer}.gate_layer"] = (key, (0, 0, half))
                names[f"{prefix}{layer}.proj"] = (key, (0, half, half))
    return names


ORIGINAL_NAMES = comfy.lora.model_lora_keys_unet


@claim
def a_lora_on_the_halves_of_a_fused_layer_is_the_same_as_in_the_host_and_goes_on(base: Path) -> None:
    base.mkdir(parents=True, exist_ok=True)
    made, lora = torch.Generator().manual_seed(9), {}
    for number in (0, 1):
        for part, alpha in (("gate_layer", 2.0), ("proj", 1.0)):
            name = f"transformer.transformer_blocks.{number}.img_mlp.{part}"
            lora[f"{name}.lora_up.weight"] = torch.randn(96, 2, generator=made)
            lora[f"{name}.lora_down.weight"] = torch.randn(2, 64, generator=made)
            lora[f"{name}.alpha"] = torch.tensor(alpha)
    file = base / "halves.safetensors"
    save_file(lora, file)
    with replaced(comfy.lora, "model_lora_keys_unet", names_of_halves):
        with training("Qwen-Image", base / "ours", change=fuse_mlps) as (denoiser, dataset), torch.no_grad():
            settings = AdapterSettings(rank=2, targets="*gate_up")
            network = build_network(denoiser, settings, read_lora(file))
            assert sorted(name for name, _ in network.items()) == [
                f"transformer_blocks.{number}.img_mlp.gate_up" for number in (0, 1)
            ]
            plain = loss_of(denoiser, dataset, [0, 1])
            with network.attached(denoiser.adaptable()):
                found = loss_of(denoiser, dataset, [0, 1])
        patcher = make_patcher("Qwen-Image", fuse_mlps)
        loaded = comfy.lora.load_lora(lora, comfy.lora.model_lora_keys_unet(patcher.model, {}))
        assert len(loaded) == 4 and len(patcher.add_patches(loaded)) == 4
        denoiser = HostDenoiser(patcher)
        with torch.inference_mode(False), torch.no_grad(), denoiser.session():
            denoiser.prepare_for(dataset)
            expected = loss_of(denoiser, dataset, [0, 1])
        assert abs(float(expected - plain)) > 1e-3, "the LoRA has an effect"
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        for naming in ("comfyui", "diffusers"):
            train_small(
                base / f"go-on-{naming}", "Qwen-Image", fuse_mlps,
                targets="*gate_up", start_from=str(file), naming=naming, sample_every=0,
            )  # fmt: skip
