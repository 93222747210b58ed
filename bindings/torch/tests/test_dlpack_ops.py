"""vector_add, softmax, activation, dropout and rope against float64, through NumPy arrays."""

import math

import numpy as np
import pytest

import ninefold.dlpack as nf
from dlpack_arrays import LAYOUTS, check, floats, untouched

layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float16])


@layouts
@dtypes
def test_vector_add(layout, dtype):
    x, y = layout(floats(5, 7, dtype=dtype)), layout(floats(5, 7, seed=1, dtype=dtype))
    z = layout(np.zeros((5, 7), dtype))
    with untouched(x, y):
        assert nf.vector_add(x, y, z=z) is z
    check(z, np.float64(x) + y)
    assert nf.vector_add(x, y).dtype == dtype
    row = np.lib.stride_tricks.as_strided(y, (5, 7), (0, y.strides[1]))
    check(nf.vector_add(x, row), np.float64(x) + y[0])
    nf.vector_add(x, y, z=x)
    np.testing.assert_array_equal(x, z)


def softmax_reference(x, scale=1.0, mask=0.0, log=False):
    v = scale * np.float64(x) + mask
    top = v.max(-1, keepdims=True)
    e = np.exp(v - np.where(np.isinf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.log(e) - np.log(total) if log else e / np.where(total == 0, 1, total)


@layouts
@dtypes
@pytest.mark.parametrize("log", [False, True])
def test_softmax(layout, dtype, log):
    x, dy = layout(floats(3, 5, 33, dtype=dtype)), layout(floats(3, 5, 33, seed=1, dtype=dtype))
    y, dx = layout(np.zeros_like(x)), layout(np.zeros_like(x))
    with untouched(x, dy):
        nf.softmax(x, y=y, scale=0.7, log=log)
        nf.softmax_backward(y, dy, dx=dx, scale=0.7, log=log)
    check(y, softmax_reference(x, 0.7, log=log))
    s, g = np.float64(y), np.float64(dy)
    expected = 0.7 * (g - np.exp(s) * g.sum(-1, keepdims=True))
    if not log:
        expected = 0.7 * s * (g - (s * g).sum(-1, keepdims=True))
    check(dx, expected)
    check(nf.softmax(x, y=x, scale=0.7, log=log), y)  # in place
    check(nf.softmax_backward(y, dy, dx=dy, scale=0.7, log=log), dx)


def test_softmax_to_another_dtype():
    x = floats(4, 9, dtype=np.float16)
    y = nf.softmax(x, y=np.empty((4, 9), np.float32))
    check(y, softmax_reference(x))
    dx = nf.softmax_backward(y, y, dx=np.empty_like(x))
    check(dx, y * (np.float64(y) - (np.float64(y) ** 2).sum(-1, keepdims=True)))


@layouts
@dtypes
def test_softmax_with_dropout(layout, dtype):
    x, g = layout(floats(3, 5, 33, dtype=dtype)), layout(floats(3, 5, 33, seed=1, dtype=dtype))
    key = {"p": 0.25, "seed": 3, "offset": 4}
    options = {"scale": 0.7, **{f"dropout_{name}": value for name, value in key.items()}}
    y, dropped = nf.softmax(x, dropped=True, **options)
    check(y, softmax_reference(x, 0.7))
    np.testing.assert_array_equal(dropped, nf.dropout(y, **key))
    np.testing.assert_array_equal(nf.softmax(x, y=None, dropped=True, **options), dropped)
    left = np.where(dropped != 0, np.float64(g) / 0.75, 0)
    s = np.float64(y)
    check(nf.softmax_backward(y, g, **options), 0.7 * s * (left - (s * left).sum(-1, keepdims=True)))


@pytest.mark.parametrize("rows, columns", [(2, 5), (5, 2), (4, 4)])
def test_softmax_masks(rows, columns):
    x = floats(2, rows, columns)
    i, j = np.mgrid[:rows, :columns]
    for name, hidden in (("bottom_right", j > i + columns - rows), ("top_left", j > i)):
        check(nf.softmax(x, causal=name), softmax_reference(x, mask=np.where(hidden, -np.inf, 0)))
    allowed = floats(rows, columns, seed=2) > -0.5
    added = np.where(allowed, floats(rows, columns, seed=3), -np.inf).astype(np.float32)
    hidden = np.where(allowed, 0, -np.inf)
    check(nf.softmax(x, mask=allowed), softmax_reference(x, mask=hidden))
    check(nf.softmax(x, mask=allowed.astype(np.uint8)), softmax_reference(x, mask=hidden))
    check(nf.softmax(x, mask=added), softmax_reference(x, mask=added))
    check(nf.softmax(x, mask=added[:1]), softmax_reference(x, mask=added[:1]))
    y = nf.softmax(x, causal="bottom_right")
    dx = nf.softmax_backward(y, np.full_like(y, np.nan), causal="bottom_right")
    assert (dx[:, j > i + columns - rows] == 0).all()


ACTS = {
    "gelu_tanh": lambda v: 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
    "gelu_erf": lambda v: 0.5 * v * (1 + np.vectorize(math.erf)(v / math.sqrt(2))),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "relu": lambda v: np.maximum(v, 0),
    "relu2": lambda v: np.maximum(v, 0) ** 2,
}
clamp = {"alpha": 1.5, "limit": 1.2}


def gated(kind, gate, up):
    if kind == "swiglu_clamp":
        g, u = np.minimum(gate, clamp["limit"]), np.clip(up, -clamp["limit"], clamp["limit"])
        return g / (1 + np.exp(-clamp["alpha"] * g)) * (u + 1)
    return ACTS[kind](gate) * up


def slope(f, at, step=1e-6):
    return (f(at + step) - f(at - step)) / (2 * step)


@layouts
@dtypes
@pytest.mark.parametrize("kind", ACTS)
def test_activation_with_bias(layout, dtype, kind):
    x, dy = layout(2 * floats(6, 37, dtype=dtype)), layout(floats(6, 37, seed=1, dtype=dtype))
    bias = layout(floats(37, seed=2, dtype=dtype))
    y, dx = layout(np.zeros_like(x)), layout(np.zeros_like(x))
    with untouched(x, dy, bias):
        nf.activation(x, kind=kind, bias=bias, y=y)
        made = nf.activation_backward(x, dy, kind=kind, bias=bias, dx=dx, dbias=np.empty(37, "f4"))
    v = np.float64(x) + bias
    check(y, ACTS[kind](v))
    expected = dy * slope(ACTS[kind], v)
    check(dx, expected)
    check(made.dbias, expected.sum(0))
    assert made.dx is dx and made.dup is None
    before = made.dbias.copy()
    nf.activation_backward(x, dy, kind=kind, bias=bias, dbias=made.dbias, accumulate=True)
    check(made.dbias, np.float64(before) * 2)
    assert nf.activation_backward(x, dy, kind=kind, dbias=True).dbias.dtype == dtype


@layouts
@pytest.mark.parametrize("kind", [*ACTS, "swiglu_clamp"])
def test_activation_gated(layout, kind):
    options = clamp if kind == "swiglu_clamp" else {}
    gate, up, dy = (floats(5, 21, seed=n) for n in range(3))
    expected = gated(kind, np.float64(gate), np.float64(up))
    dgate = dy * slope(lambda v: gated(kind, v, np.float64(up)), np.float64(gate))
    dup = dy * slope(lambda v: gated(kind, np.float64(gate), v), np.float64(up))

    both = {"kind": kind, "gating": "two_tensors", **options}
    check(nf.activation(layout(gate), up=layout(up), **both), expected)
    made = nf.activation_backward(layout(gate), layout(dy), up=layout(up), **both)
    check(made.dx, dgate)
    check(made.dup, dup)
    joined = {
        "concatenated": lambda a, b: np.concatenate([a, b], -1),
        "interleaved": lambda a, b: np.stack([a, b], -1).reshape(5, 42),
    }
    for gating, join in joined.items():
        x = layout(join(gate, up))
        check(nf.activation(x, kind=kind, gating=gating, **options), expected)
        made = nf.activation_backward(x, layout(dy), kind=kind, gating=gating, **options)
        check(made.dx, join(dgate, dup))
        assert made.dup is None and made.dbias is None


@layouts
@dtypes
def test_dropout(layout, dtype):
    x, residual = layout(floats(64, 65, dtype=dtype)), layout(floats(64, 65, seed=1, dtype=dtype))
    key = {"p": 0.3, "seed": 2**64 - 5, "offset": 7}
    with untouched(x, residual):
        y = nf.dropout(x, **key)
        z = nf.dropout(x, residual=residual, y=layout(np.zeros_like(x)), **key)
        dx = nf.dropout_backward(residual, dx=layout(np.zeros_like(x)), **key)
    kept = y != 0
    share = 1 - round(0.3 * 2**16) / 2**16  # p is drawn to the nearest 2^-16
    assert abs(kept.mean() - share) < 5 * math.sqrt(0.21 / x.size)
    check(y, np.where(kept, np.float64(x) / share, 0))
    check(z, np.where(kept, np.float64(x) / share, 0) + residual)
    check(dx, np.where(kept, np.float64(residual) / share, 0))
    np.testing.assert_array_equal(nf.dropout(x, **{**key, "seed": np.array([-5])}), y)
    np.testing.assert_array_equal(nf.dropout(x, **{**key, "offset": np.array(7)}), y)
    assert ((nf.dropout(x, **{**key, "seed": 5}) != 0) != kept).any()
    assert ((nf.dropout(x, **{**key, "offset": 8}) != 0) != kept).any()
    np.testing.assert_array_equal(nf.dropout(x, p=0), x)


def rope_reference(x, positions, layout="half", rotary=None, base=10000.0):
    rotary = rotary or x.shape[-1]
    angle = positions[..., None, None] * base ** (-np.arange(0, rotary, 2) / rotary)
    out = np.float64(x)
    half = rotary // 2
    a, b = slice(0, half), slice(half, rotary)
    if layout == "interleaved":
        a, b = slice(0, rotary, 2), slice(1, rotary, 2)
    x0, x1 = out[..., a].copy(), out[..., b].copy()
    out[..., a] = x0 * np.cos(angle) - x1 * np.sin(angle)
    out[..., b] = x1 * np.cos(angle) + x0 * np.sin(angle)
    return out


@layouts
@dtypes
@pytest.mark.parametrize("pairs", ["half", "interleaved"])
def test_rope(layout, dtype, pairs):
    q, k = layout(floats(2, 5, 3, 8, dtype=dtype)), layout(floats(2, 5, 1, 8, seed=1, dtype=dtype))
    at = np.arange(5)[None] + np.array([[3], [40]])
    options = {"layout": pairs, "rotary_dim": 6, "base": 500.0}
    expected = [rope_reference(x, at, pairs, 6, 500.0) for x in (q, k)]
    with untouched(q, k):
        made = nf.rope(q, k, positions=layout(at), **options)
        check(made.q_out, expected[0])
        check(made.k_out, expected[1])
        made = nf.rope(q, offsets=np.array([1, 38], np.int32), offset=2, **options)
        check(made.q_out, expected[0])
        assert made.k_out is None
        q_out = layout(np.zeros_like(q))
        nf.rope(q, k, q_out=q_out, positions=at, **options)
        check(q_out, expected[0])
    back = nf.rope_backward(layout(np.float32(expected[0])), positions=at, **options)
    check(back.q_out, np.float64(q))


def test_rope_packed_tables_and_scaling():
    q = floats(1, 9, 2, 8)
    packed = np.array([[0, 1, 2, 0, 0, 1, 2, 3, 4]])
    starts = np.array([0, 3, 3, 4, 9])
    check(nf.rope(q, cu_seqlens=starts, offset=5).q_out, rope_reference(q, packed + 5))
    angles = np.arange(9)[:, None] * 10000.0 ** (-np.arange(0, 8, 2) / 8)
    cos, sin = np.float32(np.cos(angles)), np.float32(np.sin(angles))
    check(nf.rope(q, cos=cos, sin=sin).q_out, rope_reference(q, np.arange(9)[None]))

    linear = nf.RopeScaling("linear", 4.0)
    check(nf.rope(q, scaling=linear).q_out, rope_reference(q, np.arange(9)[None] / 4))
    short, long = (nf.RopeScaling("llama3", 4.0, original_length=n) for n in (1, 10**9))
    check(nf.rope(q, scaling=short).q_out, rope_reference(q, np.arange(9)[None] / 4))
    check(nf.rope(q, scaling=long).q_out, rope_reference(q, np.arange(9)[None]))
    yarn = {
        a: nf.RopeScaling("yarn", 4.0, original_length=64, attention_factor=a) for a in (1.0, 2.0)
    }
    check(nf.rope(q, scaling=yarn[2.0]).q_out, 2.0 * nf.rope(q, scaling=yarn[1.0]).q_out)
    for wrong in ({"base": 0}, {"scaling": linear._replace(attention_factor=0)}):
        with pytest.raises(nf.InvalidArgument, match="cannot be 0"):
            nf.rope(q, **wrong)


def test_nothing_in_and_nothing_out():
    empty = np.zeros((0, 8), np.float32)
    assert nf.vector_add(empty, empty).shape == (0, 8)
    assert nf.softmax(empty).shape == nf.softmax_backward(empty, empty).shape == (0, 8)
    assert nf.softmax(empty.T).shape == (8, 0)
    assert nf.activation(empty, kind="silu", gating="concatenated").shape == (0, 4)
    made = nf.activation_backward(empty, empty, kind="silu", dbias=True)
    assert made.dx.shape == (0, 8) and (made.dbias == 0).all()
    assert nf.dropout(empty, p=0.5).shape == nf.dropout_backward(empty, p=0.5).shape == (0, 8)
    assert nf.rope(np.zeros((2, 0, 3, 8), np.float32)).q_out.shape == (2, 0, 3, 8)
    nf.adamw_step([], lr=0.1)
    nf.adamw_step([nf.AdamwTensor(*(np.zeros(0, np.float32) for _ in range(4)))], lr=0.1)
