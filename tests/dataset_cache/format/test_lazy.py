"""Lazy tensors are tensors: every operation gives what it gives on real data, and nothing is kept needlessly."""

import copy
import gc
import io
import multiprocessing.reduction
import operator
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.torch
import torch
from torch.nn import functional as F

from streamcache.dataset_cache import CacheError, LazyTensor, open_cache, realize
from streamcache.dataset_cache.format.tensors import NAMES

from ...support.samples import EVERY_DTYPE, bits, latent, raw, same, write_cache

VALUES = torch.arange(24.0).reshape(2, 3, 4) - 7.5


class Source:
    """Something to load from, which counts how often and keeps no hold of what it gave."""

    def __init__(self, values: torch.Tensor = VALUES) -> None:
        self.values, self.loads = values, 0
        self.given: list[weakref.ref] = []

    def load(self) -> torch.Tensor:
        self.loads += 1
        tensor = self.values.clone()
        self.given.append(weakref.ref(tensor))
        return tensor

    def lazy(self) -> LazyTensor:
        return LazyTensor(tuple(self.values.shape), self.values.dtype, self.load)


def lazy(values: torch.Tensor = VALUES) -> LazyTensor:
    return Source(values).lazy()


@pytest.fixture(params=[False, True], ids=["grad mode", "inference mode"])
def mode(request):
    with torch.inference_mode(request.param):
        yield request.param


def saved(write: Callable[[Any, io.BytesIO], None], read: Callable[[io.BytesIO], Any]) -> Callable[[Any], Any]:
    def through(value: Any) -> Any:
        file = io.BytesIO()
        write(value, file)
        file.seek(0)
        return read(file)

    return through


def sorted_items(tensors: dict[str, torch.Tensor]) -> list:
    return sorted(tensors.items(), key=lambda item: item[0])


READING = {
    "arithmetic": lambda x: x * 2 + x / 3 - x**2,
    "with a real one": lambda x: x + VALUES,
    "comparison": lambda x: x > 0,
    "equality": lambda x: x == VALUES,
    "torch.equal": lambda x: torch.equal(x, VALUES),
    "allclose": lambda x: torch.allclose(x, VALUES),
    "two of them": lambda x: x @ x.mT,
    "index": lambda x: x[1, :, ::2],
    "index by a mask": lambda x: x[x > 0],
    "index by numbers": lambda x: x[torch.tensor([1, 0, 1])],
    "index with None": lambda x: x[None, ..., 0],
    "as an index": lambda x: VALUES.view(-1)[(x + 7.5).long()],
    "iteration": lambda x: [row.sum() for row in x],
    "nested iteration": lambda x: [[float(v) for v in row[0]] for row in x],
    "in": lambda x: -7.5 in x,
    "len": len,
    "item": lambda x: x[1, 2, 3].item(),
    "float": lambda x: float(x[0, 0, 0]),
    "bool": lambda x: bool(x[0, 0, 0] < 0),
    "format": lambda x: f"{x[1, 1, 1]:.3f}",
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "array of another type": lambda x: np.array(x, dtype=np.float16),
    "numpy function": lambda x: np.exp(x.numpy()),
    "dlpack": lambda x: torch.from_dlpack(x),
    "torch.tensor": lambda x: torch.tensor(x.tolist()),
    "as_tensor": torch.as_tensor,
    "asarray of torch": torch.asarray,
    "contiguous": lambda x: x.mT.contiguous(),
    "storage": lambda x: bytes(x.untyped_storage()),
    "typed storage": lambda x: list(x.storage()),
    "element of a view": lambda x: x.view(-1).data_ptr() != 0,
    "view": lambda x: x.view(6, 4),
    "views of views": lambda x: x.permute(2, 0, 1)[1:, :, 1].unsqueeze(0).expand(5, 3, 2)[2],
    "view as another type": lambda x: x.view(torch.int32),
    "reshape": lambda x: x.mT.reshape(-1),
    "split": lambda x: torch.split(x, 1),
    "chunk": lambda x: x.chunk(2, dim=2)[1],
    "unbind": lambda x: x.unbind(1),
    "flip": lambda x: x.flip(0),
    "strides": lambda x: (x.mT.stride(), x.mT.is_contiguous(), x[:, 1:].storage_offset(), x.mT.shape),
    "cat": lambda x: torch.cat([x, VALUES, x]),
    "stack": lambda x: torch.stack([x, x]),
    "where": lambda x: torch.where(x > 0, x, 0),
    "to": lambda x: x.to(torch.float16),
    "half": lambda x: x.half(),
    "to itself": lambda x: x.to(torch.float32),
    "cpu": lambda x: x.cpu(),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2, mode="bilinear"),
    "linear": lambda x: F.linear(x, VALUES[0]),
    "vmap": lambda x: torch.vmap(torch.sum)(x),
    "sort": lambda x: x.sort(descending=True),
    "max": lambda x: x.max(dim=1),
    "einsum": lambda x: torch.einsum("abc,abc->a", x, x),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a view": lambda x: copy.deepcopy(x[1]),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "to another process": lambda x: len(multiprocessing.reduction.ForkingPickler.dumps(x)) > 0,
    "torch.save": saved(torch.save, lambda file: torch.load(file, weights_only=True)),
    "torch.save of a view": saved(
        lambda x, f: torch.save({"a": [x[0]]}, f), lambda f: torch.load(f, weights_only=True)
    ),
    "safetensors": lambda x: safetensors.torch.load(safetensors.torch.save({"x": x})),
    "safetensors of many": lambda x: sorted_items(safetensors.torch.load(safetensors.torch.save({"x": x, "y": x + 1}))),
    "into a real one": lambda x: torch.zeros(2, 3, 4).copy_(x),
    "out of a real one": lambda x: torch.add(x, 1, out=torch.empty(2, 3, 4)),
    "set item of a real one": lambda x: operator.setitem(y := torch.zeros(2, 3, 4), 0, x[1]) or y,
    "zeros_like": torch.zeros_like,
    "new_full": lambda x: x.new_full((2,), 3.0),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False) * 1,
    "pin of nothing": lambda x: x.is_pinned(),
    "shared": lambda x: x.is_shared(),
}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if (isinstance(a, tuple) and hasattr(a, "_fields")) or type(a).__module__.startswith("torch.return_types"):
        return same(tuple(a), tuple(b))
    return same(a, b)


@pytest.mark.parametrize("operation", READING)
def test_c3_an_operation_returns_the_same_as_on_real_data(mode, operation):
    source = Source()
    x = source.lazy()
    expected, found = READING[operation](VALUES.clone()), READING[operation](x)
    assert equal(found, expected)
    assert same(x, VALUES), "the tensor itself is as it was"


WRITING = {
    "+=": lambda x: operator.iadd(x, 1),
    "*=": lambda x: operator.imul(x, VALUES),
    "fill_": lambda x: x.fill_(3),
    "copy_": lambda x: x.copy_(VALUES + 1),
    "zero_": lambda x: x.zero_(),
    "x[0] =": lambda x: operator.setitem(x, 0, 5.0),
    "x[mask] =": lambda x: operator.setitem(x, x > 0, 0.0),
    "x[:, 1:, ::2] =": lambda x: operator.setitem(
        x, (slice(None), slice(1, None), slice(None, None, 2)), VALUES[:, 1:, ::2]
    ),
    "x[numbers] =": lambda x: operator.setitem(x, torch.tensor([1]), VALUES[:1]),
    "x[...] =": lambda x: operator.setitem(x, ..., VALUES * 2),
    "x[0] +=": lambda x: operator.setitem(x, 0, operator.iadd(x[0], 1)),
    "x[0].fill_": lambda x: x[0].fill_(9),
    "x.view(-1)[3] =": lambda x: operator.setitem(x.view(-1), 3, 77.0),
    "rows": lambda x: [row.mul_(2) for row in x],
    "halves": lambda x: [part.add_(n) for n, part in enumerate(x.chunk(2))],
    "x.mT": lambda x: operator.iadd(x.mT, VALUES.mT),
    "x.detach()": lambda x: x.detach().neg_(),
    "x.data": lambda x: x.data.clamp_(min=0),
    "x.data =": lambda x: setattr(x, "data", VALUES - 1),
    "copy.copy(x)": lambda x: copy.copy(x).zero_(),
    "out=": lambda x: torch.add(VALUES, VALUES, out=x),
    "out= of itself": lambda x: torch.mul(x, x, out=x),
    "out= of a part": lambda x: torch.sum(VALUES, dim=(1, 2), out=x[:, 0, 0]),
    "out= of several": lambda x: torch.max(VALUES, dim=2, out=(x[:, :, 0], torch.empty(2, 3, dtype=torch.long))),
    "foreach": lambda x: torch._foreach_add_([x, torch.zeros(1)], 2),
    "index_put_": lambda x: x.index_put_((torch.tensor([0]), torch.tensor([1])), torch.tensor(-1.0), accumulate=True),
    "masked_fill_": lambda x: x.masked_fill_(x > 3, 0),
    "scatter_": lambda x: x.scatter_(2, torch.zeros(2, 3, 1, dtype=torch.long), 8.0),
    "apply_": lambda x: x.apply_(lambda value: value * 3),
    "storage": lambda x: x.untyped_storage().fill_(0),
    "pointer": lambda x: torch.utils.swap_tensors(x, VALUES + 5),
    "uniform_": lambda x: x.uniform_(0, 1, generator=torch.Generator().manual_seed(5)),
    "F.relu_": lambda x: F.relu_(x),
}


@pytest.mark.parametrize("operation", WRITING)
def test_a_write_changes_that_object_as_it_changes_real_data(mode, operation):
    source = Source()
    with torch.inference_mode(False):
        real = VALUES.clone()
    x = source.lazy()
    returned, expected = WRITING[operation](x), WRITING[operation](real)
    assert same(x, real)
    if isinstance(expected, torch.Tensor):
        assert same(returned, expected)
        assert (returned is x) == (expected is real)
    assert same(source.values, VALUES), "what is stored stays"
    assert same(source.lazy(), VALUES), "another tensor of the same file is not written to"


@pytest.mark.parametrize(
    "derive",
    [
        lambda x: x.mT.reshape(-1),
        lambda x: x.reshape(-1),
        lambda x: x.flatten(),
        lambda x: x.mT.flatten(),
        lambda x: x.to(torch.float32),
        lambda x: x.to(torch.float64),
        lambda x: x.to(torch.float32, copy=True),
        lambda x: x.cpu(),
        lambda x: x.clone(),
        lambda x: x.mT.clone(),
        lambda x: x.expand_as(VALUES),
        lambda x: x.narrow(0, 1, 1),
        lambda x: x.diagonal(dim1=1, dim2=2),
        lambda x: x.unfold(2, 2, 2),
        lambda x: torch.atleast_3d(x),
        lambda x: x.view_as(VALUES),
        lambda x: x.movedim(0, 2),
        lambda x: x.squeeze(),
        lambda x: x.ravel(),
        lambda x: x.real,
        lambda x: x[[0, 1]],
        lambda x: x.type(torch.float32),
    ],
)
def test_a_write_into_a_derived_tensor_has_the_same_effect_as_on_real_data(mode, derive):
    x = lazy()
    with torch.inference_mode(False):
        real = VALUES.clone()
    found, expected = derive(x), derive(real)
    found += 100
    expected += 100
    assert same(found, expected)
    assert same(x, real)


def test_views_made_before_a_write_see_it():
    x = lazy()
    row, flat = x[1], x.view(-1)
    x.zero_()
    assert row.sum() == 0 and flat.sum() == 0
    row.fill_(1)
    assert x.sum() == 12 and flat[-1] == 1


def test_a_deep_copy_is_independent_both_ways():
    x = lazy()
    before = copy.deepcopy([x, x[0]])
    x.zero_()
    after = copy.deepcopy(x)
    after.fill_(1)
    assert same(before[0], VALUES) and x.sum() == 0 and after.sum() == 24
    before[1].fill_(2)
    assert before[0][0].sum() == 24, "copied together, a tensor and its view stay one"


def test_numpy_returns_an_array_of_its_own():
    x = lazy()
    x.numpy().fill(0)
    assert same(x, VALUES)
    x += 1
    x.numpy().fill(0)
    assert same(x, VALUES + 1)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.resize_(3),
        lambda x: x.transpose_(0, 1),
        lambda x: x.squeeze_(0),
        lambda x: x.unsqueeze_(0),
        lambda x: x.set_(VALUES.view(-1)),
        lambda x: x.t_() if x.dim() == 2 else x.swapaxes_(0, 1),
        lambda x: setattr(x, "data", torch.zeros(3)),
        lambda x: setattr(x, "data", torch.zeros(2, 3, 4, dtype=torch.int32)),
        lambda x: torch.add(torch.ones(5), 1, out=x),
    ],
    ids=["resize_", "transpose_", "squeeze_", "unsqueeze_", "set_", "swapaxes_", "data", "data of a type", "out="],
)
@pytest.mark.filterwarnings("ignore")
def test_an_impossible_in_place_operation_is_refused_and_changes_nothing(mode, operation):
    x = lazy()
    with pytest.raises(CacheError, match="realize"):
        operation(x)
    assert same(x, VALUES)


def test_c_code_that_wants_a_pointer_gets_an_error_not_null():
    with pytest.raises(RuntimeError):
        torch.utils.dlpack.to_dlpack(lazy())
    with pytest.raises(RuntimeError):
        torch.Tensor.data_ptr(lazy())


def test_the_pointer_stays_good_and_points_to_the_values():
    x = lazy()
    pointer = x.data_ptr()
    assert pointer and x.data_ptr() == pointer == x[:1].data_ptr() == x.untyped_storage().data_ptr()
    assert x[1].data_ptr() == pointer + 12 * 4
    assert (
        np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 24).from_address(pointer)).tolist()
        == VALUES.view(-1).tolist()
    )


def test_c3_shape_and_type_need_no_reading():
    source = Source()
    x = source.lazy()
    facts = (x.shape, x.dtype, x.device, x.dim(), x.ndim, x.numel(), x.nbytes, x.element_size(), len(x), x.size(1))
    assert facts == (VALUES.shape, VALUES.dtype, VALUES.device, 3, 3, 24, 96, 4, 2, 3)
    assert (x.stride(), x.is_contiguous(), x.layout, x.is_floating_point()) == ((12, 4, 1), True, torch.strided, True)
    made = [torch.empty_like(x), torch.zeros_like(x), torch.ones_like(x[0]), torch.randn_like(x), torch.full_like(x, 2)]
    assert [m.shape for m in made] == [x.shape, x.shape, x[0].shape, x.shape, x.shape]
    assert type(made[0]) is torch.Tensor and made[4].sum() == 48
    (
        repr(x),
        str(x),
        hash(x),
        x.new_zeros(2),
        x.requires_grad,
        x.is_pinned(),
        x.is_shared(),
        x.T if x.dim() == 2 else 0,
    )
    (
        x.view(-1),
        x[0],
        x.mT,
        x.detach(),
        x.data,
        x.unbind(),
        copy.copy(x),
        copy.deepcopy(x),
        isinstance(x, torch.Tensor),
    )
    assert source.loads == 0


def test_a_realized_value_is_not_retained(mode):
    source = Source()
    x = source.lazy()
    view = x[0]
    for use in (lambda: x + 1, lambda: view.sum(), x.realize, lambda: x.numpy().sum(), x.tolist, lambda: x == x):
        use()
    gc.collect()
    assert source.given and not any(reference() is not None for reference in source.given)
    assert not x.is_real


def test_reading_a_large_tensor_often_does_not_increase_memory():
    x = lazy(torch.zeros(1 << 20))
    x.sum()
    before = psutil.Process().memory_info().rss
    for _ in range(50):
        (x + 1).sum()
    assert psutil.Process().memory_info().rss - before < 100 << 20  # of 200 MB that were read


def test_gradients_flow_past_and_into_lazy_data():
    weight = torch.ones(4, 2, requires_grad=True)
    (lazy() @ weight).sum().backward()
    expected = torch.ones(4, 2, requires_grad=True)
    (VALUES @ expected).sum().backward()
    assert torch.equal(weight.grad, expected.grad)
    x = lazy().requires_grad_()
    (x[0] ** 2).sum().backward()
    assert torch.equal(x.grad[0], 2 * VALUES[0]) and x.grad[1].abs().sum() == 0


def test_a_write_between_forward_and_backward_is_noticed():
    weight = torch.ones(2, 3, 4, requires_grad=True)
    for write in (lambda x: x.add_(1), lambda x: operator.setitem(x, 0, 1.0), lambda x: x[0].zero_()):
        x = lazy()
        loss = (weight * x).sum()
        write(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_made_under_inference_mode_it_trains_outside():
    with torch.inference_mode():
        x = lazy()
        view = x[0]
        x.sum()
    assert not x.is_inference() and not x.realize().is_inference() and not view.realize().is_inference()
    weight = torch.ones(2, 3, 4, requires_grad=True)
    (weight * x).sum().backward()
    (weight[0] * view).sum().backward()


def test_written_under_inference_mode_it_trains_outside():
    with torch.inference_mode():
        x = lazy()
        x += 1
    weight = torch.ones(2, 3, 4, requires_grad=True)
    (weight * x).sum().backward()
    assert torch.equal(weight.grad, VALUES + 1)


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)], ids=str)
def test_every_dtype_can_be_viewed_saved_and_written(dtype, shape):
    values = bits(shape, dtype, 3)
    x = lazy(values)
    assert same(x.view(-1), values.view(-1))
    assert same(x.unsqueeze(0)[0], values)
    assert same(copy.deepcopy(x), values)
    assert same(torch.load(io.BytesIO(torch_saved(x)), weights_only=True), values)
    if NAMES[dtype] != "F4" or shape:  # half a byte cannot stand alone in a file
        assert safetensors.torch.save({"x": x}) == safetensors.torch.save({"x": values})
    x.copy_(bits(shape, dtype, 4))
    assert same(x, bits(shape, dtype, 4))


def torch_saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_conjugates_of_complex_data_are_right():
    values = bits((3,), torch.complex64, 5).nan_to_num()
    x = lazy(values)
    assert torch.equal(x.conj().resolve_conj(), values.conj().resolve_conj())
    assert torch.equal(x.imag, values.imag) and torch.equal(
        x.conj().imag.resolve_neg(), values.conj().imag.resolve_neg()
    )
    x.imag.zero_()
    assert torch.equal(x, values.real.to(torch.complex64))


def test_many_threads_read_one_tensor():
    x = lazy(torch.arange(1000.0))
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda n: float((x[n:] * 2).sum()), range(200)))
    assert sums == [float(torch.arange(1000.0)[n:].sum() * 2) for n in range(200)]


def test_many_threads_write_into_one_private_copy():
    source = Source(torch.zeros(64))
    x = source.lazy()
    start = threading.Barrier(8)

    def write(n: int) -> None:
        start.wait()
        x[n * 8 : n * 8 + 8] = n + 1.0

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert x.tolist() == [n // 8 + 1.0 for n in range(64)]
    assert source.loads == 1


def test_a_file_error_is_raised_by_the_operation():
    def fail() -> torch.Tensor:
        raise CacheError("shards/s-00000: is missing")

    x = LazyTensor((2,), torch.float32, fail)
    for use in (lambda: x + 1, x.realize, lambda: x.fill_(0), lambda: x[0].item(), x.data_ptr, lambda: pickle.dumps(x)):
        with pytest.raises(CacheError, match="is missing"):
            use()


def test_realize_keeps_structure_and_shared_tensors():
    x = lazy()
    given = {"a": [x, (x, 1)], "b": VALUES, 3: None}
    real = realize(given)
    assert same(real, {"a": [VALUES, (VALUES, 1)], "b": VALUES, 3: None})
    assert type(real["a"][0]) is torch.Tensor and real["a"][0] is real["a"][1][0] and real["b"] is VALUES


def test_lazy_data_outlives_the_cache_object(tmp_path):
    path = write_cache(tmp_path / "set", 2)
    cache = open_cache(path)
    kept, view, reference = cache[1].latent["samples"], cache[0].latent["samples"][0, 1], weakref.ref(cache)
    del cache
    gc.collect()
    assert reference() is None
    assert same(kept, latent(1)["samples"])
    assert same(view, latent(0)["samples"][0, 1])


def test_a_write_never_reaches_the_file(tmp_path):
    path = write_cache(tmp_path / "set", 2)
    stored = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and ".leases" not in file.parts}
    sample = open_cache(path)[0]
    sample.latent["samples"].zero_()
    sample.conditioning[0][0][0, 0] = 1
    batch = open_cache(path).read_batch([0])
    batch.latents.zero_()
    batch.conditionings[0][0][0].zero_()
    assert {file: file.read_bytes() for file in stored} == stored
    assert same(open_cache(path, check=True)[0].latent, latent(0))


def test_a_sample_returns_the_same_lazy_object_each_time(tmp_path):
    sample = open_cache(write_cache(tmp_path / "set", 1))[0]
    sample.latent["samples"] += 1
    assert sample.latent["samples"].is_real
    assert raw(sample.latent["samples"]) == raw(latent(0)["samples"] + 1)


COMPOSITE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{
        f"interpolate {kind} to {size}{' with antialias' * smooth}": (
            lambda t, kind=kind, size=size, smooth=smooth: F.interpolate(t, size=size, mode=kind, antialias=smooth)
        )
        for kind in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
        for size in ((24, 36), (7, 5))
        for smooth in ((False, True) if kind.startswith("bi") else (False,))
    },
    "interpolate linear": lambda t: F.interpolate(t[0], size=40, mode="linear"),
    "interpolate trilinear": lambda t: F.interpolate(t[None], size=(5, 24, 36), mode="trilinear"),
    "interpolate in half precision": lambda t: F.interpolate(t.half(), size=(24, 36), mode="bicubic"),
    "group norm": lambda t: F.group_norm(t, 2),
    "layer norm": lambda t: F.layer_norm(t, t.shape[-1:]),
    "convolution": lambda t: F.conv2d(t, torch.ones(2, 4, 3, 3)),
    "matrix product": lambda t: t @ torch.ones(18, 3),
    "einsum": lambda t: torch.einsum("bchw,dc->bdhw", t, torch.ones(2, 4)),
    "attention": lambda t: F.scaled_dot_product_attention(t, torch.ones(1, 4, 6, 18), torch.ones(1, 4, 6, 18)),
    "grid sample": lambda t: F.grid_sample(t, torch.zeros(1, 5, 5, 2), align_corners=False),
    "pixel shuffle": lambda t: F.pixel_shuffle(t, 2),
    "reflecting pad": lambda t: F.pad(t, (1, 2, 2, 1), mode="reflect"),
    "linear": lambda t: F.linear(t, torch.ones(3, 18), torch.ones(3)),
    "standard deviation": lambda t: t.std(dim=(1, 2)),
}


@pytest.mark.parametrize("operation", COMPOSITE.values(), ids=COMPOSITE)
def test_c3_operations_that_consist_of_others_run_torchs_own_kernels(mode: bool, operation: Callable) -> None:
    """Python decompositions of torch differ in the last bit, and read the values once per part."""
    values = torch.randn(1, 4, 12, 18, generator=torch.Generator().manual_seed(3))
    source = Source(values)
    assert raw(operation(source.lazy())) == raw(operation(values))
    assert source.loads == 1
