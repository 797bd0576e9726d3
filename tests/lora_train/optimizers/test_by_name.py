"""Optimizers of other packages and arguments of any: found, checked and refused before the first step."""

import importlib.util
import re
from functools import partial

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.optimizers.by_name import PACKAGES, find_optimizer, try_out
from streamcache.lora_train.optimizers.optim import OptimizerChoice, Rates, load_optimizer, make_optimizer, set_mode

INSTALLED = [module for module in PACKAGES if importlib.util.find_spec(module)]


def groups() -> list[dict]:
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(shape)) for shape in ((4, 3), (3, 4))]
    return [{"params": weights, "names": ["up", "down"]}]


def take_steps(optimizer: torch.optim.Optimizer, first: int, last: int) -> list[torch.Tensor]:
    weights = optimizer.param_groups[0]["params"]
    for number in range(first, last):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return [weight.detach().clone() for weight in weights]


def test_j6_an_argument_overrides_the_setting_and_reaches_the_optimizer() -> None:
    choice = OptimizerChoice("AdamW", arguments={"betas": (0.5, 0.6), "amsgrad": True})
    optimizer = make_optimizer(choice, groups(), Rates(0.1))
    group = optimizer.param_groups[0]
    assert (group["betas"], group["amsgrad"], group["eps"]) == ((0.5, 0.6), True, 1e-8)


def test_j6_an_argument_that_does_not_exist_is_refused_with_the_closest_name() -> None:
    for name, message in (
        ("weight_dekay", 'optimizer = "AdamW" has no argument "weight_dekay"; did you mean "weight_decay"?'),
        ("zzz", "betas, eps, weight_decay"),
        ("lr", "set learning_rate"),
    ):
        with pytest.raises(TrainError, match=re.escape(message)):
            make_optimizer(OptimizerChoice("AdamW", arguments={name: 1.0}), groups(), Rates(0.1))


def test_j6_a_value_that_an_optimizer_refuses_is_refused_before_the_first_step() -> None:
    for given, named in (
        ({"betas": (2.0, 0.9)}, "betas = (2.0, 0.9)"),
        ({"betas": 0.9}, "betas = 0.9"),
        ({"betas": "(0.9"}, "betas = '(0.9'"),
        ({"amsgrad": True, "eps": "abc"}, "amsgrad = True, eps = 'abc'"),
        ({"maximize": "maybe"}, "maximize = 'maybe'"),  # which only the fused form refuses
    ):
        message = re.escape(f'optimizer = "AdamW": cannot be used with optimizer_args {named} (')
        with pytest.raises(TrainError, match=rf"^{message}.{{1,200}}\)$"):
            make_optimizer(OptimizerChoice("AdamW", arguments=given), groups(), Rates(0.1))


def test_j6_a_wrong_number_of_betas_is_refused_with_the_argument() -> None:
    pytest.importorskip("pytorch_optimizer")
    message = re.escape('other_optimizer = "CAME": cannot be used with optimizer_args betas = (0.9,) (')
    with pytest.raises(TrainError, match=message):
        make_optimizer(OptimizerChoice("AdamW", "CAME", {"betas": (0.9,)}), groups(), Rates(0.1))


def test_j6_an_optimizer_of_a_missing_package_is_refused_with_the_command_that_installs_it(monkeypatch) -> None:
    monkeypatch.setattr("streamcache.lora_train.optimizers.by_name.PACKAGES", {"no_such_package": "no-such-package"})
    with pytest.raises(TrainError, match='"CAME": no package .* run "pip install no-such-package"'):
        find_optimizer("CAME")


class Forgetful(torch.optim.SGD):
    """Keeps a number that no state has."""

    count = 0

    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        self.count += 1
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.sub_(self.count)


class Demanding(torch.optim.SGD):
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("needs a closure")


def test_j6_an_optimizer_that_cannot_resume_or_step_is_refused() -> None:
    with pytest.raises(TrainError, match="could not be resumed"):
        try_out(Forgetful, "Forgetful", {})
    with pytest.raises(TrainError, match=re.escape("Demanding: cannot be used for this training (needs a closure)")):
        try_out(Demanding, "Demanding", {})
    try_out(partial(torch.optim.SGD, momentum=0.9), "SGD", {"momentum": 0.9})


@pytest.mark.parametrize("name", ["CAME", "lion", "SOAP", "Muon", "AdEMAMix", "ScheduleFreeAdamW"])
def test_j6_an_optimizer_of_pytorch_optimizer_trains_and_resumes_exactly(name: str) -> None:
    pytest.importorskip("pytorch_optimizer")
    _resume_exactly(name)


def test_j6_prodigy_plus_schedule_free_trains_and_resumes_exactly() -> None:
    pytest.importorskip("prodigyplus")
    _resume_exactly("ProdigyPlusScheduleFree", d_coef=2.0, betas=(0.9, 0.95))


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("Prodigy", "pytorch_optimizer"),
        ("DAdaptAdam", "pytorch_optimizer"),
        ("ProdigyPlusScheduleFree", "prodigyplus"),
    ],
)
def test_j6_an_optimizer_that_estimates_its_rate_refuses_others(name: str, package: str) -> None:
    pytest.importorskip(package)
    two = [{"params": [torch.nn.Parameter(torch.ones(2, 2))], "names": [f"{n}"], "lr": 16.0**n} for n in range(2)]
    message = f'other_optimizer = "{name}": estimates one learning rate for all modules, .* lora_plus gives 1, 16;'
    with pytest.raises(TrainError, match=message):
        make_optimizer(OptimizerChoice("AdamW", name), two, Rates(1.0))
    make_optimizer(OptimizerChoice("AdamW", name), two[:1], Rates(1.0))
    if package == "pytorch_optimizer":
        make_optimizer(OptimizerChoice("AdamW", "Lion"), two, Rates(1.0))


@pytest.mark.skipif(not INSTALLED, reason="needs pytorch-optimizer or prodigy-plus-schedule-free")
def test_j6_an_unknown_optimizer_is_refused_with_the_closest_name() -> None:
    with pytest.raises(TrainError, match="none of .* installed optimizers has this name"):
        find_optimizer("NoSuchOptimizer")


def _resume_exactly(name: str, **arguments: object) -> None:
    choice = OptimizerChoice("AdamW", name, arguments)
    whole = make_optimizer(choice, groups(), Rates(0.01))
    start = [weight.detach().clone() for weight in whole.param_groups[0]["params"]]
    expected = take_steps(whole, 0, 8)
    first, second = make_optimizer(choice, groups(), Rates(0.01)), make_optimizer(choice, groups(), Rates(0.01))
    for weight, value in zip(second.param_groups[0]["params"], take_steps(first, 0, 4)):
        weight.data.copy_(value)
    load_optimizer(second, choice, first.state_dict())
    found = take_steps(second, 4, 8)
    assert all(torch.equal(one, other) for one, other in zip(found, expected))
    assert not any(torch.equal(one, other) for one, other in zip(found, start))
    set_mode(second, training=False)
