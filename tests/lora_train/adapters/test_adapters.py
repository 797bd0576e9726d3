"""Adapters: their start, their mathematics, their hooks, and the base model that they leave as it was."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from streamcache.lora_train.adapters import AdapterSettings, build_network, lora_file
from streamcache.lora_train.adapters.lokr import split_size
from streamcache.lora_train.config import TrainConfig
from streamcache.lora_train.errors import TrainError


class Toy(nn.Module):
    """A model with every sort of layer that an adapter knows, and a denoiser's view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.image = nn.Conv2d(4, 12, 3, stride=2, padding=1)
        self.wrapped = nn.Conv2d(12, 12, 3, padding=1, padding_mode="circular", bias=False)
        self.grouped = nn.Conv2d(12, 12, 3, padding="same", groups=3)
        self.line = nn.Conv1d(12, 12, 5, padding=2, dilation=1)
        self.volume = nn.Conv3d(12, 12, (1, 3, 3), padding=(0, 1, 1))
        self.first = nn.Linear(12, 24)
        self.second = nn.Linear(24, 12, bias=False)

    def forward(self, x):
        x = self.grouped(self.wrapped(self.image(x)))
        x = self.volume(x[:, :, None])[:, :, 0]
        x = self.line(x.flatten(2)).transpose(1, 2)
        return self.second(F.gelu(self.first(x)))

    def adaptable(self):
        return dict(self.named_children())

    def groups(self):
        return {"attention": ["first"], "all": list(self.adaptable())}

    def export_names(self, naming):
        prefix = {"comfyui": "diffusion_model.", "kohya": "lora_unet_", "diffusers": "transformer."}[naming]
        return {name: prefix + name for name in self.adaptable()}


@pytest.fixture
def toy():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Toy().requires_grad_(False)


X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
KINDS = pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
AXES = pytest.mark.parametrize("axis", ["input", "output"])


def settings(**changes):
    return AdapterSettings(**{"rank": 3, "alpha": 2.0, "targets": "all", **changes})


def run(toy, network):
    with network.attached(toy.adaptable()):
        return toy(X)


def stir(network, seed=5):
    """Move every trained parameter away from its start."""
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=made) * 0.2)
    return network


def merged(toy, network):
    """A copy of the model with the adapters in its weights: the definition that the hooks have to equal."""
    model = copy.deepcopy(toy)
    for name, adapter in network.items():
        module = getattr(model, name)
        weight = module.weight.detach().clone()
        if adapter.factors is not None:
            weight += adapter.factors.weight().detach()
        if adapter.diff is not None:
            weight += adapter.diff
        if adapter.magnitude is not None:
            over = [d for d in range(weight.ndim) if d != (1 if adapter.axis == "input" else 0)]
            shape = [-1 if d not in over else 1 for d in range(weight.ndim)]
            weight *= adapter.magnitude.detach().reshape(shape) / weight.square().sum(over, keepdim=True).sqrt()
        module.weight.data = weight
        if adapter.diff_b is not None:
            module.bias.data = module.bias + adapter.diff_b
    return model


@KINDS
def test_a_fresh_adapter_changes_nothing(toy, kind):
    assert torch.equal(run(toy, build_network(toy, settings(kind=kind))), toy(X))


@AXES
def test_a_fresh_dora_changes_nothing(toy, axis):
    found = run(toy, build_network(toy, settings(dora=True, dora_axis=axis)))
    torch.testing.assert_close(found, toy(X), rtol=0, atol=1e-6)


def test_defect_6_down_is_random_up_is_zero_and_alpha_is_not_a_parameter(toy):
    network = build_network(toy, settings())
    for _, adapter in network.items():
        assert adapter.factors.up.abs().max() == 0 and adapter.factors.down.std() > 0
        assert adapter.factors.scale == pytest.approx(2 / 3)
    assert all(name.rpartition(".")[2] in ("up", "down") for name, _ in network.named_parameters())


@KINDS
def test_defect_7_the_seed_alone_decides_the_start(toy, kind):
    torch.manual_seed(1)
    first = build_network(toy, settings(kind=kind, seed=4)).tensors()
    torch.manual_seed(2)
    again = build_network(toy, settings(kind=kind, seed=4)).tensors()
    other = build_network(toy, settings(kind=kind, seed=5)).tensors()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_building_leaves_the_global_generator_alone(toy):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    build_network(toy, settings())
    assert torch.equal(torch.rand(3), expected)


def test_one_more_target_changes_no_other_start(toy):
    few, all_ = build_network(toy, settings(targets="first")), build_network(toy, settings())
    assert torch.equal(few.tensors()["first.lora_down.weight"], all_.tensors()["first.lora_down.weight"])


@KINDS
def test_hooks_equal_the_merged_weights(toy, kind):
    network = stir(build_network(toy, settings(kind=kind)))
    torch.testing.assert_close(run(toy, network), merged(toy, network)(X), rtol=1e-4, atol=1e-5)


@AXES
@KINDS
def test_dora_equals_the_merged_weights(toy, kind, axis):
    network = stir(build_network(toy, settings(kind=kind, dora=True, dora_axis=axis)))
    torch.testing.assert_close(run(toy, network), merged(toy, network)(X), rtol=1e-4, atol=1e-5)


def test_dora_trains_magnitude_factors_and_nothing_of_the_base(toy):
    network = stir(build_network(toy, settings(dora=True)))
    run(toy, network).square().mean().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert all(parameter.grad is None for parameter in toy.parameters())


@KINDS
def test_every_factor_of_a_stirred_adapter_gets_a_gradient(toy, kind):
    network = stir(build_network(toy, settings(kind=kind)))
    run(toy, network).square().mean().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in network.parameters())


def test_a_rank_stabilised_scale_divides_by_the_root_of_the_rank(toy):
    network = build_network(toy, settings(rank=4, rank_stabilised=True, targets="first"))
    factors = dict(network.items())["first"].factors
    assert factors.scale == 1.0 and factors.alpha == 4.0  # 2 / √4, and what a reader divides by the rank


def test_the_base_model_is_exactly_as_it_was(toy):
    before = copy.deepcopy(toy.state_dict())
    keys = {name: set(vars(module)) for name, module in toy.named_modules()}
    run(toy, stir(build_network(toy, settings(dora=True))))
    assert all(torch.equal(before[key], value) for key, value in toy.state_dict().items())
    assert keys == {name: set(vars(module)) for name, module in toy.named_modules()}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in toy.modules())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_no_hook_stays_after_an_error_or_an_interrupt(toy, error):
    with pytest.raises(error), build_network(toy, settings()).attached(toy.adaptable()):
        raise error
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in toy.modules())


def test_no_hook_stays_when_a_module_is_missing(toy):
    network = build_network(toy, settings())
    with pytest.raises(KeyError), network.attached({"image": toy.image}):
        pass
    assert not toy.image._forward_hooks


def test_a_base_of_another_dtype_keeps_its_output_type(toy):
    network = stir(build_network(toy, settings()))
    toy.to(torch.bfloat16)
    with network.attached(toy.adaptable()):
        out = toy(X.to(torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert {p.dtype for p in network.parameters()} == {torch.float32}


def test_autocast_reaches_the_adapters(toy):
    network = stir(build_network(toy, settings()))
    with torch.autocast("cpu", torch.bfloat16):
        out = run(toy, network)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), run(toy, network), rtol=0.1, atol=0.1)


class Quantised(nn.Module):
    """A linear layer that keeps bytes and makes its weight only inside of forward."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.step = linear.weight.abs().max() / 127
        self.weight = (linear.weight / self.step).round().to(torch.int8).detach()
        self.bias = linear.bias

    def forward(self, x):
        return F.linear(x, self.weight * self.step, self.bias)


def test_a_quantised_base_is_adapted_without_its_weight(toy):
    toy.first = Quantised(toy.first)
    plain, network = toy(X), build_network(toy, settings(targets="first"))
    assert torch.equal(run(toy, network), plain)
    assert not torch.equal(run(toy, stir(network)), plain)


def test_dora_on_integer_weights_is_refused_with_the_remedy(toy):
    toy.first = Quantised(toy.first)
    with pytest.raises(TrainError, match=r"first: DoRA.*int8.*floats \(24, 12\).*dora = false"):
        build_network(toy, settings(targets="first", dora=True))


class Packed(torch.Tensor):
    """A weight of bytes that knows its floats, as quantisation libraries make them."""

    @staticmethod
    def __new__(cls, weight):
        step = weight.abs().max() / 127
        packed = torch.Tensor._make_subclass(cls, (weight / step).round().to(torch.int8))
        packed.step = step
        return packed

    def dequantize(self):
        return self.as_subclass(torch.Tensor).float() * self.step


@AXES
def test_dora_on_weights_that_can_be_dequantised_equals_the_merged_weights(toy, axis):
    packed = Packed(toy.second.weight.detach())
    toy.second.weight.data = packed.dequantize()
    network = stir(build_network(toy, settings(targets="second", dora=True, dora_axis=axis)))
    expected = merged(toy, network)(X)
    floats = toy.second.weight
    del toy.second.weight
    toy.second.weight = packed
    toy.second.forward = lambda x: F.linear(x, floats)
    torch.testing.assert_close(run(toy, network), expected, rtol=1e-4, atol=1e-5)


def test_dropout_follows_from_seed_and_step_and_stops_in_eval(toy):
    network = stir(build_network(toy, settings(dropout=0.5)))

    def at(step):
        network.begin(step)
        return run(toy, network)

    assert torch.equal(at(1), at(1)) and not torch.equal(at(1), at(2))
    network.eval()
    assert torch.equal(at(1), at(2))


def test_a_layer_smaller_than_the_rank_gets_its_full_rank_at_the_same_scale(toy, caplog):
    toy.wide = nn.Linear(32, 32)
    network = build_network(toy, settings(rank=16, alpha=8.0, targets="wide, first"))
    found = {name: (adapter.factors.rank, adapter.factors.scale) for name, adapter in network.items()}
    assert found == {"first": (12, 0.5), "wide": (16, 0.5)}
    assert "Rank 16 is above the full rank of 1 small layers" in caplog.text


def test_a_rank_above_every_layer_is_refused(toy):
    with pytest.raises(TrainError, match="rank: found 16, larger than every target layer; expected at most 12"):
        build_network(toy, settings(rank=16))


def test_targets_without_a_match_list_the_available_modules(toy):
    with pytest.raises(TrainError, match='"attn.*" matches none of 7 modules.*Presets: attention, all.*first, grouped'):
        build_network(toy, settings(targets="attn.*"))


def test_a_preset_a_pattern_and_a_rate_select_their_modules(toy):
    network = build_network(toy, settings(targets="attention, *ed, !grouped", group_rates={"*ed": 1e-5}))
    assert [name for name, _ in network.items()] == ["wrapped", "first"]
    rates = [(group["lr"], len(group["params"])) for group in network.parameter_groups(1e-4)]
    assert sorted(rates) == [(1e-5, 2), (1e-4, 2)]


def test_a_rate_of_zero_trains_nothing_there(toy):
    network = build_network(toy, settings(targets="first, second", group_rates={"all": 1e-3, "first": 0}))
    assert [name for name, _ in network.items()] == ["second"]
    with pytest.raises(TrainError, match="every target has the rate 0"):
        build_network(toy, settings(group_rates={"all": 0}))


def test_an_invalid_rate_is_refused():
    with pytest.raises(TrainError, match="group_rates.all = nan: expected a finite number"):
        TrainConfig(group_rates={"all": float("nan")})


def test_a_rate_for_a_pattern_without_modules_is_refused(toy):
    with pytest.raises(TrainError, match="group_rates: .*matches none"):
        build_network(toy, settings(group_rates={"blocks.*": 1.0}))


def test_excluding_every_module_is_refused(toy):
    with pytest.raises(TrainError, match="excludes every module"):
        build_network(toy, settings(targets="first, !*"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"adapter": "boft"},
        {"rank": 0},
        {"alpha": -1.0},
        {"adapter_dropout": 1.0},
        {"dora_axis": "x"},
        {"lokr_factor": -1},
    ],
)
def test_invalid_settings_are_refused_by_name(wrong):
    with pytest.raises(TrainError, match=next(iter(wrong))):
        TrainConfig(**wrong)


@KINDS
@AXES
def test_a_network_is_restored_bit_for_bit_from_its_tensors(toy, kind, axis):
    network = stir(build_network(toy, settings(kind=kind, dora=True, dora_axis=axis, alpha=1.7)))
    again = build_network(toy, settings(kind=kind), lora_file.split_lora(network.tensors()))
    assert torch.equal(run(toy, again), run(toy, network))
    assert all(torch.equal(value, again.tensors()[key]) for key, value in network.tensors().items())


def test_two_networks_add_up_and_leave_separately(toy):
    first, second = (stir(build_network(toy, settings(targets="second", seed=s)), s) for s in (1, 2))
    with first.attached(toy.adaptable()):
        alone = toy(X)
        with second.attached(toy.adaptable()):
            both = toy(X)
        assert torch.equal(toy(X), alone)
    assert not torch.equal(both, alone)


@pytest.mark.parametrize(
    "size, factor, expected", [(128, None, (8, 16)), (127, None, (1, 127)), (360, 4, (4, 90)), (1, 8, (1, 1))]
)
def test_lokr_splits_a_size_near_its_root(size, factor, expected):
    assert split_size(size, factor) == expected
