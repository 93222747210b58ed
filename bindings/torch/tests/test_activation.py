"""Activation functions of one tensor, with and without a bias, against torch's in float64."""

import itertools
from functools import partial

import closeness
import pytest
import torch
import torch.nn.functional as F
from closeness import assert_only_wanted, gradients, spiky
from conftest import compiled_once
from torch.library import opcheck

import ninefold

assert_rounded_once = partial(closeness.assert_rounded_once, rtol=2e-6, atol=4e-7)
DTYPES = torch.float32, torch.bfloat16, torch.float16
ACTIVATIONS = {
    "gelu": (ninefold.gelu, F.gelu),
    "gelu_tanh": (
        partial(ninefold.gelu, approximate="tanh"),
        partial(F.gelu, approximate="tanh"),
    ),
    "silu": (ninefold.silu, F.silu),
    "relu2": (ninefold.relu2, lambda x: F.relu(x).square()),
}
with_activations = pytest.mark.parametrize(
    ("ours", "torchs"), ACTIVATIONS.values(), ids=ACTIVATIONS
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@with_activations
def test_against_float64(device, dtype, ours, torchs):
    x = spiky(3, 5, 37, dtype=dtype, device=device)
    upstream = torch.randn_like(x)
    before = x.clone(), upstream.clone()
    results = gradients(ours, x, upstream=upstream)
    for actual, exact in zip(results, gradients(torchs, x.double(), upstream=upstream)):
        assert actual.dtype == dtype
        assert_rounded_once(actual, exact)
    assert torch.equal(x, before[0]) and torch.equal(upstream, before[1])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_gelu_against_float64(device, dtype, approximate):
    x, bias = (spiky(*s, dtype=dtype, device=device) for s in [(2, 300, 23), (23,)])
    upstream = torch.randn_like(x)
    y, dx, dbias = gradients(partial(ninefold.bias_gelu, approximate=approximate), x, bias,
                             upstream=upstream)
    exact_y, exact_dx, exact_dbias = gradients(
        lambda x, bias: F.gelu(x + bias, approximate=approximate), x.double(), bias.double(),
        upstream=upstream,
    )
    assert_rounded_once(y, exact_y)
    assert_rounded_once(dx, exact_dx)
    # 128 rows in a row are summed in fp32, and the result is rounded once.
    bound = exact_dx.abs().sum((0, 1)) * 128 * 2.0**-24
    bound += exact_dbias.abs() * (torch.finfo(dtype).eps / 2) + 1e-6
    assert ((dbias - exact_dbias).abs() <= bound).all()
    again = gradients(partial(ninefold.bias_gelu, approximate=approximate), x, bias,
                      upstream=upstream)
    assert torch.equal(dbias, again[2])


@pytest.mark.parametrize("wanted", [*itertools.product([False, True], repeat=2)], ids=str)
def test_each_subset_of_gradients(device, wanted):
    x, bias = (spiky(*s, dtype=torch.float32, device=device) for s in [(5, 12), (12,)])
    upstream = torch.randn_like(x)
    assert_only_wanted(ninefold.bias_gelu, wanted, x, bias, upstream=upstream)


LAYOUTS = {
    "transposed": lambda x: x.transpose(0, 1),
    "every second": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(6, -1),
    "empty": lambda x: x[:0],
    "no columns": lambda x: x[:, :0],
    "scalar": lambda x: x[0, 0],
    "rank 8": lambda x: x.reshape(2, 1, 2, 1, 2, 1, 1, 4),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@with_activations
def test_layouts(device, ours, torchs, layout):
    x = layout(spiky(4, 8, dtype=torch.float32, device=device))
    upstream = layout(torch.randn(4, 8, device=device))
    for actual, exact in zip(
        gradients(ours, x, upstream=upstream), gradients(torchs, x.double(), upstream=upstream)
    ):
        assert actual.shape == exact.shape and actual.is_contiguous()
        assert_rounded_once(actual, exact)


@with_activations
def test_extreme_values(device, ours, torchs):
    x = torch.tensor([-torch.inf, -1e30, -200.0, 200.0, 1e15, torch.inf, torch.nan], device=device)
    y, dx = gradients(ours, x, upstream=torch.ones_like(x))
    assert (y[:3] == 0).all() and torch.isfinite(y[3:5]).all()
    assert y[5] == torch.inf and y[6].isnan()
    assert (dx[:3] == 0).all() and (dx[3:6] > 0.99).all() and dx[6].isnan()


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(device, grad):
    operators = torch.ops.ninefold
    x, bias = (torch.randn(s, device=device, requires_grad=grad) for s in [(3, 8), (8,)])
    for kind in range(5):
        opcheck(operators.activation.default, (x, kind))
    opcheck(operators.bias_activation.default, (x[:, ::2], bias[::2], 1))
    opcheck(operators.bias_activation.default, (x[:0], bias, 1))
    if not grad:
        opcheck(operators.activation_.default, (x.clone(), 2))
        opcheck(operators.activation_backward.default, (x.exp(), x, 2))
        for needs_grad_bias in (False, True):
            opcheck(operators.bias_activation_backward.default,
                    (x.exp(), x, bias, 1, needs_grad_bias))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_whole_and_once(device, backend):
    def block(x, bias):
        y = ninefold.bias_gelu(x, bias) + ninefold.gelu(x, "tanh") + ninefold.relu2(x)
        return y + ninefold.silu(x * 2, inplace=True)

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for rows in compiled_once((4, 7, 9)):
        x, bias, upstream = (torch.randn(s, device=device) for s in [(rows, 16), (16,), (rows, 16)])
        for actual, eager in zip(
            gradients(compiled, x, bias, upstream=upstream),
            gradients(block, x, bias, upstream=upstream),
        ):
            torch.testing.assert_close(actual, eager)


def test_inplace(device):
    x = spiky(5, 9, dtype=torch.float32, device=device)
    expected = ninefold.silu(x)
    y = x.clone()
    assert ninefold.silu(y, inplace=True) is y and torch.equal(y, expected)
    # Under autograd: torch's gradient, its refusal of leaves, and its word to others.
    leaf = x.clone().requires_grad_()
    upstream = torch.randn_like(x)
    inner = leaf * 2
    assert ninefold.silu(inner, inplace=True) is inner
    torch.testing.assert_close(inner, F.silu(leaf * 2))
    (grad,) = torch.autograd.grad(inner, leaf, upstream)
    torch.testing.assert_close(grad, torch.autograd.grad(F.silu(leaf * 2), leaf, upstream)[0])
    with pytest.raises(RuntimeError, match="leaf"):
        ninefold.silu(leaf, inplace=True)
    inner = leaf * 2
    squared = inner * inner
    with torch.no_grad():
        ninefold.silu(inner, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


def test_autocast(device):
    x, bias = (torch.randn(s, device=device) for s in [(3, 8), (8,)])
    with torch.autocast(device, torch.bfloat16):
        for ours, _ in ACTIVATIONS.values():
            for dtype in (torch.float32, torch.bfloat16):
                assert ours(x.to(dtype)).dtype == dtype
        assert F.gelu(x.bfloat16()).dtype == F.silu(x.bfloat16()).dtype == torch.bfloat16
        half = ninefold.bias_gelu(x.bfloat16(), bias.requires_grad_())
    assert half.dtype == torch.bfloat16
    half.sum().backward()
    assert bias.grad.dtype == torch.float32


def test_inference_mode(device):
    with torch.inference_mode():
        x = torch.randn(3, 8, device=device)
        torch.testing.assert_close(ninefold.gelu(x), F.gelu(x))
        torch.testing.assert_close(ninefold.silu(x.clone(), inplace=True), F.silu(x))


def test_modules(device):
    x = torch.randn(3, 8, device=device)
    for ours, torchs in [
        (ninefold.GELU("tanh"), torch.nn.GELU("tanh")),
        (ninefold.GELU(), torch.nn.GELU()),
        (ninefold.SiLU(inplace=True), torch.nn.SiLU(inplace=True)),
    ]:
        assert repr(ours) == repr(torchs) and ours.state_dict() == torchs.state_dict()
        torch.testing.assert_close(ours(x.clone()), torchs(x.clone()))


def test_wrong_input(device):
    x, bias = torch.randn(3, 8, device=device), torch.randn(8, device=device)
    for other in (torch.int64, torch.complex64):
        for function in (ninefold.gelu, F.gelu):
            with pytest.raises(NotImplementedError):
                function(x.to(other))
    with pytest.raises(NotImplementedError, match="fp32, fp16"):
        ninefold.gelu(x.double())
    for function in (ninefold.gelu, F.gelu):
        with pytest.raises(RuntimeError, match="approximate"):
            function(x, approximate="erf")
        with pytest.raises(TypeError):
            function([1.0])
    for other in (bias[:7], bias.bfloat16(), bias.expand(3, 8)):
        with pytest.raises(RuntimeError):
            ninefold.bias_gelu(x, other)
    with pytest.raises(RuntimeError, match="share memory"):
        ninefold.silu(x[:1].expand(3, 8), inplace=True)


def test_double_backward_says_no(device):
    x = torch.randn(3, 8, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(ninefold.gelu(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        grad.sum().backward()
