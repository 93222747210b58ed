"""Dropout by what its contract says, since torch's own drops other elements."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_only_wanted, gradients
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

import ninefold
from conftest import compiled_once, no_gpu

DTYPES = torch.float32, torch.bfloat16, torch.float16


def kept(*shape: int, device: str, p: float = 0.5) -> torch.Tensor:
    """The mask of the next call."""
    return ninefold.dropout(torch.ones(shape, device=device), p) != 0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_by_one_mask(device, dtype, p):
    x, residual, upstream = (torch.randn(3, 5, 37, device=device).to(dtype) for _ in range(3))
    before = [t.clone() for t in (x, residual, upstream)]
    state = torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()
    mask = kept(3, 5, 37, device=device, p=p)
    scale = 1 / (1 - round(p * 2**16) / 2**16)  # p is drawn to the nearest 2^-16
    for function, exact_y in [
        (lambda x, r: ninefold.dropout(x, p) + r * 0, torch.where(mask, x.double() * scale, 0.0)),
        (lambda x, r: ninefold.dropout_add(x, r, p),
         torch.where(mask, x.double() * scale, 0.0) + residual.double()),
    ]:
        torch.set_rng_state(state) if device == "cpu" else torch.cuda.set_rng_state(state)
        y, dx, dresidual = gradients(function, x, residual, upstream=upstream)
        exact_dx = torch.where(mask, upstream.double() * scale, 0.0)
        for actual, exact in [(y, exact_y), (dx, exact_dx)]:
            assert actual.dtype == dtype
            half = torch.finfo(dtype).eps / 2
            torch.testing.assert_close(actual.double(), exact, rtol=half * 1.01 + 1e-7, atol=4e-7)
        assert not dx[~mask].any()
    assert torch.equal(dresidual, upstream)
    assert all(torch.equal(a, b) for a, b in zip((x, residual, upstream), before))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_statistics(device, p):
    """Shares and correlations of independent bits within five of their standard deviations."""
    count = 100_000
    masks = torch.stack([kept(count, device=device, p=p).double() for _ in range(8)])
    deviation = math.sqrt(p * (1 - p))
    assert ((masks.mean(1) - (1 - p)).abs() < 5 * deviation / math.sqrt(count)).all()
    centred = (masks - (1 - p)) / deviation
    calls = centred @ centred.T / count  # one call and another
    assert (calls - calls.diag().diag()).abs().max() < 5 / math.sqrt(count)
    for distance in (1, 2, 4, 8, 37):  # elements of one call
        products = centred[:, distance:] * centred[:, :-distance]
        assert (products.mean(1).abs() < 5 / math.sqrt(count - distance)).all()


def test_seed_and_offset_as_numbers(device):
    """What is drawn on CUDA without a kernel, and what a seed on the device must agree with."""
    x = torch.ones(64, 64, device=device, requires_grad=True)
    masks = []
    for seed, offset in [(5, 0), (5, 4), (6, 0), (-1, 2**62)]:
        y = torch.ops.ninefold.dropout(x, 0.5, None, seed, offset)
        (dx,) = torch.autograd.grad(y, x, x)
        assert torch.equal(y, dx)
        masks.append(y.detach())
    for a, b in itertools.combinations(masks, 2):
        assert not torch.equal(a, b)
    seed = torch.tensor(5, device=device)
    assert torch.equal(torch.ops.ninefold.dropout(x, 0.5, seed), masks[0])


def test_manual_seed(device):
    torch.manual_seed(1)
    first = [kept(64, 64, device=device) for _ in range(3)]
    torch.manual_seed(1)
    again = [kept(64, 64, device=device) for _ in range(3)]
    torch.manual_seed(2)
    other = [kept(64, 64, device=device) for _ in range(3)]
    assert all(map(torch.equal, first, again))
    for a, b in itertools.combinations(first + other, 2):
        assert not torch.equal(a, b)
    torch.manual_seed(-1)  # the largest of 64 bits: a legal seed
    kept(8, device=device)


def test_layout_and_dtype_do_not_change_the_mask(device):
    torch.manual_seed(1)
    mask = kept(6, 8, device=device)
    for dtype, view in [
        (torch.bfloat16, lambda x: x),
        (torch.float32, lambda x: x.T.contiguous().T),
        (torch.float16, lambda x: x[:1, :1].expand(6, 8)),
    ]:
        torch.manual_seed(1)
        x = view(torch.ones(6, 8, device=device, dtype=dtype))
        assert torch.equal(ninefold.dropout(x) != 0, mask)


def test_nothing_to_drop_and_nothing_to_keep(device):
    x = torch.tensor([1.0, -2.0, torch.inf, torch.nan], device=device)
    residual = torch.randn(4, device=device)
    before = torch.get_rng_state()
    for dropout in (ninefold.dropout, F.dropout):
        assert dropout(x, 0.0) is x and dropout(x, 0.7, training=False) is x
    for options in ({"p": 0.0}, {"p": 0.7, "training": False}):
        y = ninefold.dropout_add(x, residual, **options)
        torch.testing.assert_close(y, x + residual, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(ninefold.dropout(x, 1.0), torch.zeros_like(x))
    assert torch.equal(ninefold.dropout_add(x, residual, 1.0), residual)
    for shape in [(0, 3), (3, 0), ()]:
        x = torch.ones(shape, device=device)
        y, dx = gradients(ninefold.dropout, x, upstream=x)
        assert y.shape == dx.shape == x.shape and torch.equal(y, dx)


@pytest.mark.parametrize("wanted", [*itertools.product([False, True], repeat=2)], ids=str)
def test_each_subset_of_gradients(device, wanted):
    x, residual, upstream = (torch.randn(5, 12, device=device) for _ in range(3))

    def seeded(x, residual):
        torch.manual_seed(1)
        return ninefold.dropout_add(x, residual)

    assert_only_wanted(seeded, wanted, x, residual, upstream=upstream)


def test_inplace(device):
    x, upstream = torch.randn(5, 12, device=device), torch.randn(5, 12, device=device)
    torch.manual_seed(1)
    y, dx = gradients(lambda x: ninefold.dropout(x * 2), x, upstream=upstream)
    torch.manual_seed(1)
    inner = x * 2
    assert ninefold.dropout(inner, inplace=True) is inner and torch.equal(inner, y)
    torch.manual_seed(1)
    results = gradients(lambda x: ninefold.dropout(x * 2, inplace=True), x, upstream=upstream)
    assert torch.equal(results[0], y) and torch.equal(results[1], dx)
    with pytest.raises(RuntimeError, match="leaf"):
        ninefold.dropout(x.requires_grad_(), inplace=True)
    inner = x * 2
    squared = inner * inner
    with torch.no_grad():
        ninefold.dropout(inner, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_makes_the_same_mask_again(device, use_reentrant):
    x, upstream = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)

    def block(x):
        return ninefold.dropout(ninefold.dropout(x, 0.3).exp(), 0.5)

    torch.manual_seed(1)
    plain = gradients(block, x, upstream=upstream)
    torch.manual_seed(1)
    leaf = x.clone().requires_grad_()
    y = checkpoint(block, leaf, use_reentrant=use_reentrant)
    kept(8, device=device)  # the generator moves on before the backward
    y.backward(upstream)
    assert torch.equal(y, plain[0]) and torch.equal(leaf.grad, plain[1])


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(device, grad):
    operators = torch.ops.ninefold
    x, residual = (torch.randn(3, 8, device=device, requires_grad=grad) for _ in range(2))
    seed = torch.randint(2**63 - 1, (), device=device)
    for options in [(0.5, seed), (0.5, None, -3, 2**40), (0.0,), (1.0, seed)]:
        opcheck(operators.dropout.default, (x, *options))
        opcheck(operators.dropout_add.default, (x[:, ::2], residual[:, ::2], *options))
        if not grad:
            opcheck(operators.dropout_.default, (x.clone(), *options))
            opcheck(operators.dropout_backward.default, (x[:, ::2], *options))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_whole_and_once(device, backend):
    def block(x, residual):
        return ninefold.dropout_add(ninefold.dropout(x, 0.25), residual, 0.5)

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    masks = []
    for rows in compiled_once((64, 70, 64)):
        x = torch.ones(rows, 48, device=device)
        y, dx, dresidual = gradients(compiled, x, torch.zeros_like(x), upstream=x)
        assert torch.equal(y, dx) and torch.equal(dresidual, x)
        values, counts = y.unique(return_counts=True)
        torch.testing.assert_close(values.cpu(), torch.tensor([0, 2 / 0.75]))
        assert abs(counts[1] / x.numel() - 0.375) < 5 * math.sqrt(0.375 * 0.625 / x.numel())
        masks.append(y)
    assert not torch.equal(masks[0], masks[2])
    torch.manual_seed(3)
    first = compiled(x, x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x, x), first)


def test_autocast_promotes_as_a_sum_does(device):
    x = torch.randn(3, 8, device=device).bfloat16().requires_grad_()
    residual = torch.randn(3, 8, device=device)
    with torch.autocast(device, torch.bfloat16):
        y = ninefold.dropout_add(x, residual)
        assert y.dtype == (x + residual).dtype == torch.float32
        assert ninefold.dropout(x).dtype == F.dropout(x).dtype == torch.bfloat16
        assert ninefold.dropout(residual).dtype == F.dropout(residual).dtype == torch.float32
    y.sum().backward()
    assert x.grad.dtype == torch.bfloat16


def test_inference_mode(device):
    with torch.inference_mode():
        x = torch.ones(64, 64, device=device)
        assert set(ninefold.dropout(x).unique().tolist()) == {0, 2}
        assert set(ninefold.dropout(x, inplace=True).unique().tolist()) == {0, 2}


def test_module(device):
    x = torch.ones(64, 64, device=device)
    ours, torchs = ninefold.Dropout(0.25), torch.nn.Dropout(0.25)
    assert repr(ours) == repr(torchs) and ours.state_dict() == torchs.state_dict()
    assert abs((ours(x) == 0).double().mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / x.numel())
    assert ours.eval()(x) is x


def test_wrong_input(device):
    x = torch.randn(3, 8, device=device)
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="within 0 and 1"):
            ninefold.dropout(x, p)
    for function in (ninefold.Dropout, torch.nn.Dropout):
        with pytest.raises(ValueError):
            function(1.5)
    for dropout in (ninefold.dropout, F.dropout):
        with pytest.raises(TypeError):
            dropout(x, "half")
    with pytest.raises(NotImplementedError, match="fp32, fp16"):
        ninefold.dropout(x.double())
    for residual in (x[:2], x.bfloat16(), x[0]):
        with pytest.raises(RuntimeError, match="residual"):
            ninefold.dropout_add(x, residual)
    for seed in (torch.zeros(2, dtype=torch.int64), torch.zeros((), dtype=torch.int32)):
        with pytest.raises(RuntimeError, match="seed"):
            torch.ops.ninefold.dropout(x, 0.5, seed.to(device))
    with pytest.raises(RuntimeError, match="share memory"):
        ninefold.dropout(x[:1].expand(3, 8), inplace=True)


def test_double_backward_says_no(device):
    x = torch.randn(3, 8, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(ninefold.dropout(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        grad.sum().backward()


@no_gpu
def test_a_captured_graph_draws_anew_at_each_replay():
    x = torch.ones(64, 64, device="cuda", requires_grad=True)

    def step():
        y = ninefold.dropout(x)
        return y, *torch.autograd.grad(y, x, torch.ones_like(y))

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, dx = step()

    def replays():
        torch.cuda.manual_seed(5)
        for _ in range(3):
            graph.replay()
            assert torch.equal(y, dx)
            yield y.clone()

    first, again = list(replays()), list(replays())
    assert all(map(torch.equal, first, again))
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(first, 2))
    assert 0 < (first[0] == 0).double().mean() < 1
