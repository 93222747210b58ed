"""matmul against float64, through NumPy arrays."""

import math

import numpy as np
import pytest

import ninefold.dlpack as nf
from dlpack_arrays import LAYOUTS, check, floats, untouched

layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def operands(m=7, k=33, n=10, **options):
    return floats(m, k, **options), floats(k, n, seed=1, **options)


def product(a, b):
    return np.float64(a) @ np.float64(b)


def gelu(z):
    return 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))


def silu(z):
    return z / (1 + np.exp(-z))


@layouts
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products(layout, dtype):
    a, b = map(layout, operands(dtype=dtype))
    with untouched(a, b):
        made = nf.matmul(a, b)
    assert made.d.dtype == dtype and made[1:] == (None, None, None)
    check(made.d, product(a, b))
    check(nf.matmul(b.T, a.T, d=np.empty((10, 7), np.float32)).d, product(a, b).T)


def test_batches_scales_and_what_is_there():
    a, b = floats(3, 4, 5), floats(3, 5, 6, seed=1)
    c, d = floats(3, 4, 6, seed=2), np.empty((3, 4, 6), "f4")
    expected = 0.5 * (np.float64(a) @ b) - 2 * np.float64(c)
    check(nf.matmul(a, b, c=c, d=d, alpha=0.5, beta=np.full(1, -2, "f4")).d, expected)
    nf.matmul(a, b, c=c, d=c)
    check(c, expected / -2 + 1.25 * (np.float64(a) @ b))


def test_gelu_and_its_backward():
    a, b = operands()
    bias, residual = floats(10, seed=2), floats(7, 10, seed=3)
    made = nf.matmul(
        a, b, bias=bias, epilogue="gelu_erf", residual=residual, preactivation=True, row_sums=True
    )
    z = product(a, b) + bias
    check(made.preactivation, z)
    check(made.d, gelu(z) + residual)
    check(made.row_sums, gelu(z).sum(1))
    step = 1e-6
    slope = (gelu(z + step) - gelu(z - step)) / (2 * step)
    back = nf.matmul(
        a, b, epilogue="gelu_erf_backward", saved=made.preactivation, column_sums=True
    )
    check(back.d, product(a, b) * slope)
    check(back.column_sums, (product(a, b) * slope).sum(0))
    nf.matmul(
        a,
        b,
        epilogue="gelu_erf_backward",
        saved=made.preactivation,
        column_sums=back.column_sums,
        accumulate=True,
    )
    check(back.column_sums, 2 * (product(a, b) * slope).sum(0))


@pytest.mark.parametrize("kind", ["concatenated", "interleaved"])
def test_swiglu(kind):
    a, b = operands()
    made = nf.matmul(a, b, epilogue=f"swiglu_{kind}", preactivation=True)
    z = product(a, b)
    gate, up = (z[:, :5], z[:, 5:]) if kind == "concatenated" else (z[:, ::2], z[:, 1::2])
    check(made.d, silu(gate) * up)
    check(made.preactivation, z)


def test_wrong_input():
    a, b = operands()
    with pytest.raises(nf.InvalidArgument, match="as many rows as a has columns"):
        nf.matmul(a, b.T)
    with pytest.raises(nf.InvalidArgument, match="epilogue: expected one of linear"):
        nf.matmul(a, b, epilogue="tanh")
    with pytest.raises(nf.InvalidArgument, match="accumulate"):
        nf.matmul(a, b, row_sums=True, accumulate=True)
    with pytest.raises(nf.InvalidArgument, match="saved"):
        nf.matmul(a, b, epilogue="gelu_tanh_backward")
