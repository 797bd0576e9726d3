"""Every form of a change gives the matrix, norm and singular values of the direct formula."""

import pytest
import torch

from streamcache.errors import TrainError
from streamcache.lora_train.lora_tools.change import Kronecker, Product, Whole, add_up, change_of, concatenate

from .lora_files import random


def loha(outputs: int, columns: int, rank: int) -> tuple[dict, torch.Tensor]:
    sizes = {"hada_w1_a": (outputs, rank), "hada_w1_b": (rank, columns)}
    sizes |= {"hada_w2_a": (outputs, rank), "hada_w2_b": (rank, columns)}
    parts = {name: random(*size, seed=at) for at, (name, size) in enumerate(sizes.items())}
    one, two = parts["hada_w1_a"] @ parts["hada_w1_b"], parts["hada_w2_a"] @ parts["hada_w2_b"]
    return parts | {"alpha": torch.tensor(3.0)}, 3.0 / rank * one * two


def loha_tucker() -> tuple[dict, torch.Tensor]:
    sides = [(side, end, size) for side in "12" for end, size in (("a", 14), ("b", 10))]
    parts = {f"hada_w{side}_{end}": random(3, size, seed=size + int(side)) for side, end, size in sides}
    parts |= {"hada_t1": random(3, 3, 3, 3, seed=8), "hada_t2": random(3, 3, 3, 3, seed=9)}
    one, two = (
        torch.einsum("ijkl,jr,ip->prkl", parts[f"hada_t{n}"], parts[f"hada_w{n}_b"], parts[f"hada_w{n}_a"])
        for n in "12"
    )
    return parts, (one * two).flatten(1)


def lokr(kernel: tuple[int, ...] | None = None) -> tuple[dict, torch.Tensor]:
    small = random(4, 3, seed=1)
    if kernel is not None:
        large = random(5, 6, *kernel, seed=2)
        product = torch.kron(small.reshape(4, 3, *[1] * len(kernel)), large)
        return {"lokr_w1": small, "lokr_w2": large, "alpha": torch.tensor(9.0)}, product.flatten(1)
    a, b = random(5, 2, seed=3), random(2, 6, seed=4)
    parts = {"lokr_w1": small, "lokr_w2_a": a, "lokr_w2_b": b, "alpha": torch.tensor(3.0)}
    return parts, 1.5 * torch.kron(small, a @ b)


def tucker() -> tuple[dict, torch.Tensor]:
    up, down, mid = random(12, 3, 1, 1, seed=1), random(3, 10, 1, 1, seed=2), random(3, 3, 3, 3, seed=3)
    parts = {"lora_up.weight": up, "lora_down.weight": down, "lora_mid.weight": mid, "alpha": torch.tensor(6.0)}
    return parts, 2 * torch.einsum("om,mnkl,nj->ojkl", up[..., 0, 0], mid, down[..., 0, 0]).flatten(1)


def product(outputs: int, columns: int, rank: int) -> tuple[dict, torch.Tensor]:
    up, down = random(outputs, rank, seed=1), random(rank, columns, seed=2)
    return {"lora_up.weight": up, "lora_down.weight": down}, up @ down


CASES = {
    "LoRA": (product(24, 20, 4), Product),
    "LoRA above full rank": (product(6, 20, 9), Product),
    "LoRA with a mid": (tucker(), Product),
    "LoHa of a small rank": (loha(40, 36, 4), Product),
    "LoHa of a large rank": (loha(16, 12, 5), Whole),
    "LoHa with a core": (loha_tucker(), Product),
    "LoKr": (lokr(), Kronecker),
    "LoKr of whole matrices": (lokr(()), Kronecker),
    "LoKr of a convolution": (lokr((3, 3)), Kronecker),
    "difference": (({"diff": random(8, 5, 3, 3)}, random(8, 5, 3, 3).flatten(1)), Whole),
}


@pytest.mark.parametrize("case", CASES)
def test_i7_every_form_has_the_matrix_norm_and_singular_values_of_its_formula(case: str):
    (parts, expected), form = CASES[case]
    change = change_of(parts, "file: layer")
    assert isinstance(change, form)
    assert torch.allclose(change.matrix(), expected, atol=1e-6)
    assert change.norm() == pytest.approx(float(expected.norm()), rel=1e-5)
    spectrum, exact = change.spectrum(), torch.linalg.svdvals(expected.double())
    count = min(len(spectrum.values), len(exact))
    assert torch.allclose(spectrum.values[:count].double(), exact[:count], atol=1e-5 * float(exact[0]))
    assert torch.allclose(spectrum.cut(count).matrix(), expected, atol=1e-5)
    assert torch.allclose(change.factors().matrix(), expected, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_i7_a_cut_is_the_nearest_matrix_of_its_rank(case: str):
    """Eckart and Young: its error is the norm of the singular values that are left out."""
    (parts, expected), _ = CASES[case]
    values = torch.linalg.svdvals(expected.double())
    spectrum = change_of(parts, "").spectrum()
    error = float((spectrum.cut(2).matrix() - expected).norm())
    assert error == pytest.approx(float(values[2:].norm()), abs=1e-5)
    assert 1 - spectrum.kept(2) == pytest.approx(float(values[2:].norm() / values.norm()) ** 2, abs=1e-5)


def test_a_sum_is_a_product_while_that_is_smaller_than_the_matrix():
    one, two = (change_of(product(24, 20, 4)[0], ""), change_of(product(24, 20, 8)[0], ""))
    expected = 0.5 * one.matrix() - 2 * two.matrix()
    small, large = add_up([(0.5, one), (-2.0, two)]), add_up([(0.5, one), (-2.0, two), (0.0, two)])
    assert isinstance(small, Product) and isinstance(large, Whole)
    assert torch.allclose(small.matrix(), expected, atol=1e-5) and torch.allclose(large.values, expected, atol=1e-5)
    assert concatenate([(0.5, one), (-2.0, two), (0.0, two)]).rank == 20


def test_a_change_of_the_bias_alone_is_none_of_the_weight():
    assert change_of({"diff_b": random(4)}, "") is None and change_of({"diff": random(4)}, "") is None


@pytest.mark.parametrize(
    "parts",
    [
        {"lora_up.weight": random(4, 3), "lora_down.weight": random(2, 5)},
        {"lora_up.weight": random(4, 2), "lora_down.weight": random(2, 0)},
        {"lora_up.weight": random(4, 2), "lora_down.weight": random(2, 5), "lora_mid.weight": random(2, 3, 3, 3)},
        loha(4, 5, 2)[0] | {"hada_w2_b": random(2, 6)},
        loha(4, 5, 2)[0] | {"hada_w1_b": random(3, 5)},
        {"lokr_w1": random(4), "lokr_w2": random(4, 4)},
        {"lokr_w1": random(2, 2), "lokr_w2_a": random(3, 2), "lokr_w2_b": random(3, 2)},
    ],
)
def test_shapes_that_do_not_fit_each_other_are_named(parts: dict):
    with pytest.raises(TrainError, match=r"^f: l: found .*\(.*do not fit each other; the file is damaged"):
        change_of(parts, "f: l")


TALL, WIDE = torch.zeros(90_000, 300), torch.zeros(300, 90_000)


@pytest.mark.parametrize(
    "parts",
    [
        {"lora_up.weight": TALL[:, :1], "lora_down.weight": WIDE[:1], "diff": random(2, 2)},
        {"lokr_w1": torch.zeros(900, 900), "lokr_w2": torch.zeros(900, 900)},
        {"lokr_w1": random(2, 2), "lokr_w2_a": TALL[:, :1], "lokr_w2_b": WIDE[:1]},
        {"hada_w1_a": TALL, "hada_w1_b": WIDE, "hada_w2_a": TALL, "hada_w2_b": WIDE},
    ],
)
def test_a_small_file_cannot_describe_a_huge_matrix(parts: dict):
    with pytest.raises(TrainError, match=r"f: l: describes a matrix of .* larger than 2.15 GB"):
        change_of(parts, "f: l")
