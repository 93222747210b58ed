"""softmax and log_softmax against torch's own, and their extras against float64."""

import itertools
from functools import partial

import closeness
import pytest
import torch
from torch.library import opcheck

import ninefold

assert_rounded_once = partial(closeness.assert_rounded_once, rtol=2e-6, atol=1e-6)
DTYPES = torch.float32, torch.bfloat16, torch.float16
FUNCTIONS = {
    "softmax": (ninefold.softmax, torch.softmax),
    "log_softmax": (ninefold.log_softmax, torch.log_softmax),
}
with_functions = pytest.mark.parametrize(("ours", "torchs"), FUNCTIONS.values(), ids=FUNCTIONS)
with_names = pytest.mark.parametrize("name", FUNCTIONS)


def gradients(function, *inputs: torch.Tensor, upstream: torch.Tensor) -> tuple:
    """The output, and the gradients of those inputs that require one."""
    output = function(*inputs)
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    return output, *torch.autograd.grad(output, wanted, upstream.to(output.dtype))


LAYOUTS = {  # a tensor of shape (4, 5, 6) each, none of whose dimensions is like another
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "permuted": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand(4, 5, 6),
}


@pytest.mark.parametrize("dim", range(-3, 3))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@with_functions
def test_every_dimension(device, dtype, dim, ours, torchs):
    x = (torch.randn(4, 5, 6, device=device) * 3).to(dtype).requires_grad_()
    upstream = torch.randn(4, 5, 6, device=device)
    exact_x = x.detach().double().requires_grad_()
    output, dx = gradients(partial(ours, dim=dim), x, upstream=upstream)
    exact, exact_dx = gradients(partial(torchs, dim=dim), exact_x, upstream=upstream.to(dtype))
    assert output.dtype == dx.dtype == dtype
    assert output.stride() == dx.stride() == (30, 6, 1)
    assert_rounded_once(output, exact)
    # From the rounded output, as in torch: its error times the largest sum over a row.
    error = torch.finfo(dtype).eps * (1 + upstream.abs().sum(dim, keepdim=True))
    assert ((dx - exact_dx).abs() <= error).all()


@pytest.mark.parametrize("dim", range(3))
@pytest.mark.parametrize(
    ("layout", "upstream_layout"),
    [(a, b) for a in LAYOUTS for b in LAYOUTS if a == "contiguous" or b in (a, "contiguous")],
)
@with_functions
def test_every_layout(device, layout, upstream_layout, dim, ours, torchs):
    x = LAYOUTS[layout](torch.randn(4, 5, 6, device=device)).detach().requires_grad_()
    upstream = LAYOUTS[upstream_layout](torch.randn(4, 5, 6, device=device))
    results = [gradients(partial(f, dim=dim), x, upstream=upstream) for f in (ours, torchs)]
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("given", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64], ids=str)
@with_functions
def test_dtype(device, dtype, given, ours, torchs):
    if dtype == torch.int64 and given is None:
        pytest.skip("refused: see test_what_is_not_supported")
    x = torch.randn(3, 40, device=device).mul(2).to(dtype).requires_grad_(dtype.is_floating_point)
    ours, expected = (f(x, -1, dtype=given) for f in (ours, torchs))
    assert ours.dtype == expected.dtype
    torch.testing.assert_close(ours, expected, rtol=1e-6 + torch.finfo(ours.dtype).eps, atol=1e-6)
    if x.requires_grad:
        upstream = torch.randn_like(ours)
        coarser = max(torch.finfo(ours.dtype).eps, torch.finfo(dtype).eps)
        ours, expected = (torch.autograd.grad(y, x, upstream)[0] for y in (ours, expected))
        assert ours.dtype == expected.dtype
        # Two outputs that are rounded: see above.
        error = 2 * coarser * (1 + upstream.float().abs().sum(-1, keepdim=True))
        assert ((ours - expected).abs() <= error).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (2, 0, 3), (1,), (1, 1), (7, 50257)])
@with_functions
def test_shapes(device, shape, ours, torchs):
    x = torch.randn(shape, device=device, requires_grad=True)
    upstream = torch.randn(shape, device=device)
    for dim in range(-max(len(shape), 1), max(len(shape), 1)):
        actual = gradients(partial(ours, dim=dim), x, upstream=upstream)
        expected = gradients(partial(torchs, dim=dim), x, upstream=upstream)
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, check_stride=True)


MASKS = {  # broadcast to (2, 3, 5, 7)
    "boolean": lambda device: torch.rand(2, 1, 5, 7, device=device) < 0.7,
    "bytes": lambda device: (torch.rand(5, 7, device=device) < 0.7).to(torch.uint8),
    "per key": lambda device: torch.rand(7, device=device) < 0.7,
    "added": lambda device: torch.randn(3, 5, 7, device=device),
    "added, one per head": lambda device: torch.randn(3, 1, 1, device=device),
}


@pytest.mark.parametrize("causal", [False, True, "bottom_right", "top_left"])
@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("dim", [-1, -2, 0])
@with_functions
def test_scale_and_masks(device, dim, mask, causal, ours, torchs):
    x = torch.randn(2, 3, 5, 7, device=device, requires_grad=True)
    upstream = torch.randn(2, 3, 5, 7, device=device)
    mask = MASKS[mask](device) if mask else None
    added = mask is not None and mask.is_floating_point()
    inputs = x, mask.requires_grad_() if added else mask
    exact_inputs = [None if t is None else t.detach().double() for t in inputs]
    for t, exact in zip(inputs, exact_inputs, strict=True):
        if t is not None and t.requires_grad:
            exact.requires_grad_()

    def by_definition(x, m):
        v = 0.5 * x
        allowed = torch.ones_like(x, dtype=torch.bool)
        if m is not None:
            v, allowed = (v + m, allowed) if added else (v, allowed & (m != 0))
        moved = allowed.movedim(dim, -1)
        queries, keys = moved.shape[-2:]
        if causal:
            last = 0 if causal == "top_left" else keys - queries
            moved &= torch.ones_like(moved).tril(last)
        # An empty row is 0 (log: -inf), and has no gradient.
        some = allowed.any(dim, keepdim=True)
        result = torchs(v.masked_fill(~allowed & some, -torch.inf), dim)
        return result.masked_fill(~some, -torch.inf if torchs is torch.log_softmax else 0)

    # Where the result is -inf, an upstream gradient means nothing.
    with torch.no_grad():
        exact = by_definition(*exact_inputs)
    expected_upstream = upstream.masked_fill(exact == -torch.inf, 0)
    actual = gradients(
        lambda x, m: ours(x, dim, scale=0.5, mask=m, causal=causal), *inputs, upstream=upstream
    )
    wanted = [t for t in exact_inputs if t is not None and t.requires_grad]
    exact = by_definition(*exact_inputs)
    grads = torch.autograd.grad(exact, wanted, expected_upstream.double())
    for a, b in zip(actual, (exact, *grads), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-6, atol=2e-6)


def test_what_is_masked_may_be_anything(device):
    x = torch.randn(4, 9, device=device)
    mask = torch.rand(4, 9, device=device) < 0.5
    mask[2] = False
    expected = ninefold.softmax(x, -1, mask=mask)
    x[~mask] = torch.nan
    x.requires_grad_()
    y, dx = gradients(
        lambda x: ninefold.softmax(x, -1, mask=mask), x, upstream=torch.randn_like(mask.float())
    )
    assert torch.equal(y, expected) and not y[2].any()
    assert dx[~mask].eq(0).all() and dx.isfinite().all()


def test_a_large_constant_changes_nothing(device):
    x = torch.tensor([-1e7, -1e7 - 1, -1e7], device=device)
    expected = torch.tensor([-0.86199480, -1.86199480, -0.86199480], device=device)
    torch.testing.assert_close(ninefold.log_softmax(x, 0), expected, rtol=1e-6, atol=0)


@with_names
def test_in_place(device, name):
    in_place = getattr(torch.ops.ninefold, f"{name}_")
    ours, _ = FUNCTIONS[name]
    for dim in (0, 1):
        x = torch.randn(5, 9, device=device)
        mask = torch.rand(9 if dim else (5, 1), device=device)
        expected = ours(x, dim, mask=mask, scale=2.0)
        assert in_place(x, dim, mask, 2.0) is None
        assert torch.equal(x, expected)


@with_names
def test_autocast(device, name):
    ours, torchs = FUNCTIONS[name]
    x = torch.randn(3, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.randn(3, 8, device=device)
    with torch.autocast(device, torch.bfloat16):
        for options in ({}, {"dtype": torch.float16}):
            ours_, theirs = (
                gradients(partial(f, dim=-1, **options), x, upstream=upstream)
                for f in (ours, torchs)
            )
            assert [t.dtype for t in ours_] == [t.dtype for t in theirs]
            torch.testing.assert_close(ours_[0], theirs[0])
        with torch.no_grad():
            assert ours(x, -1).dtype == torchs(x, -1).dtype


@pytest.mark.parametrize("needs", [False, True])
@with_names
def test_opcheck(device, name, needs):
    ops = torch.ops.ninefold
    op, in_place, backward = (getattr(ops, name + end) for end in ("", "_", "_backward"))
    for shape, dim in itertools.product([(3, 4), (0, 4)], [0, -1]):
        x = torch.randn(shape, device=device, requires_grad=needs)
        opcheck(op.default, (x, dim))
        opcheck(op.default, (x.mT, dim, None, torch.randn(1, device=device), 2.0, 2))
        opcheck(op.default, (x.detach().bfloat16().requires_grad_(needs), dim, torch.float32))
        y, dy = torch.rand(2, *shape, device=device)
        opcheck(backward.default, (dy, y, dim))
        opcheck(backward.default, (dy.mT, y.mT, dim, None, 0.5, 1))
        opcheck(backward.default, (dy, y, dim, torch.float16))
        opcheck(in_place.default, (x.detach().clone(), dim))
    added = torch.randn(4, device=device, requires_grad=needs)
    opcheck(op.default, (torch.randn(3, 4, device=device), 1, None, added))


def test_what_is_not_supported(device):
    x = torch.randn(3, 4, device=device)
    for dtype in (torch.float64, torch.int32, torch.bool, torch.complex64):
        for f in (ninefold.softmax, ninefold.log_softmax):
            with pytest.raises(NotImplementedError, match="softmax: "):
                f(x.to(dtype), -1)
    with pytest.raises(NotImplementedError, match="out"):
        ninefold.softmax(x, -1, out=x)
    with pytest.raises(NotImplementedError, match="8 dimensions"):
        ninefold.softmax(x.reshape([1] * 7 + [3, 4]), -1)
    with pytest.raises(NotImplementedError, match="scale"):
        ninefold.softmax(x, -1, scale=0.0)
    with pytest.raises(NotImplementedError, match="causal"):
        ninefold.softmax(x[0], -1, causal=True)


def test_wrong_input(device):
    """The exception types are torch's own for the same mistake."""
    x = torch.randn(3, 4, device=device)
    for dim in (2, -3):
        for f in (ninefold.softmax, torch.softmax):
            with pytest.raises(IndexError, match=f"got {dim}"):
                f(x, dim)
    for arguments in (([1.0], 0), (x, 0.5), (None, 0)):
        for f in (ninefold.softmax, torch.softmax):
            with pytest.raises(TypeError):
                f(*arguments)
    with pytest.raises(TypeError, match="mask"):
        ninefold.softmax(x, 0, mask=[True])
    with pytest.raises(RuntimeError, match="mask"):
        ninefold.softmax(x, -1, mask=torch.ones(3, dtype=torch.bool, device=device))
    with pytest.raises(RuntimeError, match="scale"):
        ninefold.softmax(x, -1, scale=float("nan"))
    with pytest.raises(ValueError, match="causal"):
        ninefold.softmax(x, -1, causal="left")


def test_modules(device):
    x = torch.randn(3, 4, device=device)
    for ours, theirs in (
        (ninefold.Softmax(0), torch.nn.Softmax(0)),
        (ninefold.LogSoftmax(0), torch.nn.LogSoftmax(0)),
    ):
        torch.testing.assert_close(ours(x), theirs(x))
        assert isinstance(ours, type(theirs)) and repr(ours) == repr(theirs)
