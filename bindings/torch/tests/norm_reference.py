"""The norms as functions of the same arguments, ours and torch's, and how near results must be."""

import pytest
import torch
import torch.nn.functional as F

import ninefold

DTYPES = torch.float32, torch.bfloat16, torch.float16
NORMS = "rms_norm", "layer_norm"
with_norms = pytest.mark.parametrize("norm", NORMS)
with_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
EPS = 1e-5


def torchs(norm: str, x, weight=None, bias=None, shape=None):
    shape = x.shape[-1:] if shape is None else shape
    if norm == "layer_norm":
        return F.layer_norm(x, shape, weight, bias, EPS)
    return F.rms_norm(x, shape, weight, EPS)


def ours(norm: str, x, weight=None, bias=None, shape=None, **options):
    shape = x.shape[-1:] if shape is None else shape
    if norm == "layer_norm":
        return ninefold.layer_norm(x, shape, weight, bias, EPS, **options)
    return ninefold.rms_norm(x, shape, weight, EPS, **options)


def random(*shape: int, dtype=torch.float32, device: str, mean: float = 0.0) -> torch.Tensor:
    return (torch.randn(shape, device=device) + mean).to(dtype).requires_grad_()


def parameters(norm: str, n: int, dtype: torch.dtype, device: str) -> list:
    """Weight and, for layer_norm, bias: neither of them the identity."""
    count = 2 if norm == "layer_norm" else 1
    return [random(n, dtype=dtype, device=device, mean=1.0) for _ in range(count)]


def doubles(*tensors):
    """The same in float64, wishes for gradients included."""
    return [
        None if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in tensors
    ]


def dtypes(tensors) -> list:
    return [None if t is None else t.dtype for t in tensors]


def gradients(output, inputs, upstream) -> list:
    """Of all inputs; None for those that want none."""
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    grads = iter(torch.autograd.grad(output, wanted, upstream))
    return [next(grads) if t is not None and t.requires_grad else None for t in inputs]


def assert_near(actual, exact, size=None) -> None:
    """Half a unit in the last place, and fp32's errors of what was added up: sizes of `size`."""
    assert (actual is None) == (exact is None)
    if actual is None:
        return
    half = torch.finfo(actual.dtype).eps / 2 if actual.dtype != torch.float32 else 0.0
    size = exact.abs().max() if size is None and exact.numel() else size
    error = half * exact.abs() + 2e-6 * (1 if size is None else 1 + size)
    assert ((actual - exact).abs() <= error).all(), (actual - exact).abs().max()


def assert_gradients_near(grads, exact, upstream, xhat) -> None:
    """Of the input, weight and bias. The latter two are sums over rows."""
    terms_of = None, upstream * xhat, upstream
    for one, expected, terms in zip(grads, exact, terms_of[: len(exact)], strict=True):
        size = None if terms is None else terms.double().abs().flatten(0, -2).sum(0)
        assert_near(one, expected, size)
