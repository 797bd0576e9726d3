"""The same training by PEFT and by LyCORIS, each in a plain loop: equal gradients, losses and weights."""

import json

import pytest
import torch
from safetensors.torch import load_file

from streamcache.lora_train.adapters import build_network, lora_file
from streamcache.lora_train.optimizers.optim import Rates, make_optimizer

from .other_files import GOLDEN, Model, settings

TRAININGS = load_file(GOLDEN / "training.safetensors")  # made by make.py there
RANKS = {"peft": 2, "lycoris_lora": 3, "lycoris_loha": 3, "lycoris_lokr": 1}
PATTERNS = {"group_ranks": {"image": 4.0}, "group_alphas": {"image": 3.0}}


def values_of(case: str, what: str) -> dict[str, torch.Tensor]:
    prefix = f"{case}.{what}."
    return {name.removeprefix(prefix): value for name, value in TRAININGS.items() if name.startswith(prefix)}


def make_network(case: str, model: Model):
    """A network with the first weights of a golden training, in double precision as there."""
    parts = values_of(case, "first")
    if case != "peft":
        parts |= {f"{name}.alpha": value for name, value in values_of(case, "alpha").items()}
    facts = {"lora_alpha": 8, "alpha_pattern": {"image": 3}, "rank_pattern": {"image": 4}}
    metadata = {"lora_adapter_metadata": json.dumps(facts)} if case == "peft" else {}
    file = lora_file.split_lora({f"diffusion_model.{name}": value for name, value in parts.items()}, metadata, case)
    kind = case.removeprefix("lycoris_") if case != "peft" else "lora"
    changes = {"targets": "linear, image", "kind": kind, "alpha": 8.0, **(PATTERNS if case == "peft" else {})}
    return build_network(model, settings(RANKS[case], **changes), file).moved(dtype=torch.float64)


def assert_equal(network, expected: dict[str, torch.Tensor]) -> None:
    """The values of a network, which may keep a part in another shape, against those of a file."""
    found = network.tensors()
    for name, value in expected.items():
        own = found[name.replace("lora_A", "lora_down").replace("lora_B", "lora_up")]
        torch.testing.assert_close(own.double().reshape(value.shape), value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", RANKS)
def test_j6_gradients_losses_and_weights_are_those_of_peft_and_lycoris(case: str) -> None:
    model = Model().double()
    for layer in (model.linear, model.image):
        layer.bias.data.zero_()
    network = make_network(case, model)
    random = torch.Generator().manual_seed(3)
    for _, value in sorted(values_of(case, "first").items()):  # the golden loop draws them first
        assert torch.equal(0.3 * torch.randn(value.shape, generator=random), value)
    optimizer = make_optimizer("AdamW", network.parameter_groups(1e-2), Rates(1e-2))
    losses = TRAININGS[f"{case}.losses"]
    with network.attached(model.adaptable()):
        for step in range(len(losses)):
            x, y, pixels, z = (
                torch.randn(shape, generator=random, dtype=torch.float64)
                for shape in ((8, 24), (8, 16), (2, 12, 5, 5), (2, 16, 5, 5))
            )
            loss = (model.linear(x) - y).square().mean() + (model.image(pixels) - z).square().mean()
            loss.backward()
            torch.testing.assert_close(loss.detach(), losses[step], rtol=1e-6, atol=0)
            if step == 0:
                own = [parameter.detach().clone() for parameter in network.parameters()]
                for parameter in network.parameters():
                    parameter.data = parameter.grad.clone()  # so that they get the names of the file
                assert_equal(network, values_of(case, "gradient"))
                for parameter, value in zip(network.parameters(), own):
                    parameter.data = value
            optimizer.step()
            optimizer.zero_grad()
    assert_equal(network, values_of(case, "last"))


def test_j6_ranks_and_alphas_by_pattern_are_those_of_peft() -> None:
    """The settings make the network that PEFT makes of the same patterns."""
    model = Model()
    made = dict(build_network(model, settings(2, targets="linear, image", alpha=8.0, **PATTERNS)).items())
    for name, theirs in make_network("peft", model).items():
        factors = made.pop(name).factors
        assert (factors.rank, factors.alpha, factors.up.shape) == (
            theirs.factors.rank, theirs.factors.alpha, theirs.factors.up.shape,
        )  # fmt: skip
    assert not made
