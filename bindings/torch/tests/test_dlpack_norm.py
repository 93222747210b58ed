"""rms_norm and layer_norm, forward and backward, against float64, through NumPy arrays."""

import numpy as np
import pytest

import ninefold.dlpack as nf
from dlpack_arrays import LAYOUTS, check, floats, untouched

layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
kinds = pytest.mark.parametrize("kind", ["rms", "layer"])
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float16])
EPS = 1e-3


def norm(kind):
    return getattr(nf, f"{kind}_norm"), getattr(nf, f"{kind}_norm_backward")


def forward(kind, h, weight, bias, offset=0.0):
    h = np.float64(h)
    mean = h.mean(-1, keepdims=True) if kind == "layer" else np.zeros_like(h[..., :1])
    rstd = 1 / np.sqrt(((h - mean) ** 2).mean(-1, keepdims=True) + EPS)
    xhat = (h - mean) * rstd
    return xhat * (offset + weight) + bias, xhat, mean[..., 0], rstd[..., 0]


def backward(kind, xhat, rstd, dy, weight, offset=0.0):
    g = dy * (offset + weight)
    inner = g - xhat * (g * xhat).mean(-1, keepdims=True)
    if kind == "layer":
        inner -= g.mean(-1, keepdims=True)
    rows = tuple(range(dy.ndim - 1))
    return inner * rstd[..., None], (dy * xhat).sum(rows), dy.sum(rows)


@layouts
@kinds
@dtypes
def test_norm(layout, kind, dtype):
    run, run_back = norm(kind)
    x, dy = layout(floats(3, 4, 65, dtype=dtype)), layout(floats(3, 4, 65, seed=1, dtype=dtype))
    weight, bias = floats(65, seed=2, dtype=dtype), floats(65, seed=3, dtype=dtype)
    saved = {"rstd": True, **({"mean": True} if kind == "layer" else {})}
    y, dx = layout(np.zeros_like(x)), layout(np.zeros_like(x))
    wide = {name: np.zeros(65, np.float32) for name in ("dweight", "dbias")}
    with untouched(x, dy, weight, bias):
        got = run(x, weight, bias=bias, y=y, eps=EPS, weight_offset=1.0, **saved)
        statistics = {name: getattr(got, name) for name in saved}
        back = run_back(
            dy, x, weight, bias=bias, eps=EPS, weight_offset=1.0, dx=dx, **wide, **statistics
        )
    expected, xhat, mean, rstd = forward(kind, x, weight, bias, 1.0)
    check(y, expected)
    check(got.rstd, rstd)
    if kind == "layer":
        check(got.mean, mean)
    slopes = backward(kind, xhat, rstd, np.float64(dy), weight, 1.0)
    for value, slope in zip((dx, back.dweight, back.dbias), slopes):
        check(value, slope)
    assert back.d_residual is None and got.residual_out is None

    again = run_back(dy, x, weight, accumulate=True, **wide, **statistics, eps=EPS)
    assert again.dweight is wide["dweight"]
    check(again.dbias, 2 * slopes[2])
    made = run_back(dy, x, weight, dx=None, dweight=True, **statistics, eps=EPS)
    assert made.dx is None and made.dweight.dtype == dtype and made.dbias is None


@layouts
@kinds
def test_residual(layout, kind):
    run, run_back = norm(kind)
    x, residual, dy, arriving = (layout(floats(6, 33, seed=n)) for n in range(4))
    weight = floats(33, seed=5)
    saved = {"rstd": True, **({"mean": True} if kind == "layer" else {})}
    got = run(x, weight, residual=residual, residual_out=True, eps=EPS, **saved)
    h = np.float64(x) + residual
    expected, xhat, _, rstd = forward(kind, h, weight, 0.0)
    check(got.residual_out, h)
    check(got.y, expected)
    statistics = {name: getattr(got, name) for name in saved}
    back = run_back(
        dy,
        weight=weight,
        residual_out=got.residual_out,
        d_residual_out=arriving,
        dx=None,
        d_residual=True,
        eps=EPS,
        **statistics,
    )
    dh = backward(kind, xhat, rstd, np.float64(dy), weight)[0] + arriving
    check(back.d_residual, dh)
    y = run(x, weight, residual=residual, y=x, residual_out=residual, eps=EPS)
    check(y.y, expected)  # both outputs over the inputs
    check(residual, h)


@kinds
def test_dropout_is_that_of_dropout(kind):
    run, run_back = norm(kind)
    x, residual, dy = (floats(16, 64, seed=n) for n in range(3))
    key = {"p": 0.25, "seed": 11, "offset": 2**63 + 1}
    dropped = nf.dropout(x, residual=residual, **key)
    expected, xhat, _, rstd = forward(kind, dropped, 1.0, 0.0)
    saved = {"rstd": True, **({"mean": True} if kind == "layer" else {})}
    options = {"dropout_p": 0.25, "dropout_seed": 11, "dropout_offset": 2**63 + 1, "eps": EPS}
    got = run(x, residual=residual, residual_out=True, **saved, **options)
    np.testing.assert_array_equal(got.residual_out, dropped)
    check(got.y, expected)
    statistics = {name: getattr(got, name) for name in saved}
    options["dropout_seed"] = np.array([11])
    back = run_back(dy, residual_out=dropped, d_residual=True, **statistics, **options)
    dh = backward(kind, xhat, rstd, np.float64(dy), 1.0)[0]
    check(back.d_residual, dh)
    check(back.dx, nf.dropout_backward(np.float32(dh), **key))


def test_roundings_and_a_narrow_result():
    x, weight = floats(5, 48), floats(48, seed=1)
    y = np.empty((5, 48), np.float16)
    expected, xhat, *_ = forward("rms", x, weight, 0.0)
    check(nf.rms_norm(x, weight, eps=EPS, y=y).y, expected)
    nf.rms_norm(x, weight, eps=EPS, y=y, rounding="llama")
    rounded = (np.float16(xhat) * np.float64(weight)).astype(np.float16)
    assert (rounded != expected.astype(np.float16)).any()
    assert (y == rounded).mean() > 0.99  # fp32 and float64 may part at a tie
    with pytest.raises(nf.InvalidArgument, match="once, llama"):
        nf.rms_norm(x, rounding="twice")


def test_nothing_in_and_nothing_out():
    for kind in ("rms", "layer"):
        run, run_back = norm(kind)
        saved = {"rstd": True, **({"mean": True} if kind == "layer" else {})}
        for shape in ((0, 8), (3, 0)):
            x, weight = np.zeros(shape, np.float32), np.ones(shape[-1], np.float32)
            got = run(x, weight, **saved)
            statistics = {name: getattr(got, name) for name in saved}
            back = run_back(x, x, weight, dweight=True, dbias=True, **statistics)
            assert got.y.shape == back.dx.shape == shape and got.rstd.shape == shape[:1]
            assert (back.dweight == 0).all() and (back.dbias == 0).all()


def test_wrong_arguments():
    x, weight, one = floats(4, 8), floats(8), np.ones(4, np.float32)
    for call, words in (
        (lambda: nf.rms_norm(x, floats(7)), "weight"),
        (lambda: nf.rms_norm(x, residual=floats(4, 7)), "residual"),
        (lambda: nf.rms_norm_backward(x, x, rstd=one, dx=None), "dx"),
        (lambda: nf.rms_norm_backward(x, x, rstd=one, dweight=floats(8)), "weight"),
        (
            lambda: nf.rms_norm_backward(x, x, weight, rstd=one, dweight=True, accumulate=True),
            "dweight: accumulate",
        ),
        (lambda: nf.layer_norm_backward(x, x, rstd=one, mean=None), "mean"),
    ):
        with pytest.raises(nf.InvalidArgument, match=words):
            call()
