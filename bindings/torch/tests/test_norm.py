"""rms_norm and layer_norm against torch's own in float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from norm_reference import (
    DTYPES,
    EPS,
    assert_gradients_near,
    assert_near,
    doubles,
    dtypes,
    gradients,
    ours,
    parameters,
    random,
    torchs,
    with_dtypes,
    with_norms,
)
from torch.library import opcheck

import ninefold


@pytest.mark.parametrize("wishes", [*itertools.product([False, True], repeat=3)], ids=str)
@with_dtypes
@with_norms
def test_each_subset_of_gradients(device, norm, dtype, wishes):
    """Of input, weight and bias."""
    weight, *bias = parameters(norm, 37, dtype, device)
    inputs = [random(3, 5, 37, dtype=dtype, device=device), weight, *bias]
    wishes = wishes[: len(inputs)]
    for tensor, wish in zip(inputs, wishes, strict=True):
        tensor.requires_grad_(wish)
    before = [t.detach().clone() for t in inputs]
    upstream = torch.randn(3, 5, 37, device=device).to(dtype)

    output, expected = ours(norm, *inputs), torchs(norm, *(exact := doubles(*inputs)))
    assert output.dtype == dtype and output.is_contiguous()
    assert output.requires_grad == any(wishes)
    assert_near(output, expected)
    if any(wishes):
        grads = gradients(output, inputs, upstream)
        assert dtypes(grads) == [dtype if wish else None for wish in wishes]
        xhat = torchs(norm, exact[0].detach())
        assert_gradients_near(
            grads, gradients(expected, exact, upstream.double()), upstream, xhat
        )
    assert all(map(torch.equal, inputs, before))


@pytest.mark.parametrize("given", [(), ("weight",), ("bias",), ("weight", "bias")], ids=str)
@pytest.mark.parametrize("parameter_dtype", DTYPES, ids=str)
@with_dtypes
@with_norms
def test_parameters(device, norm, dtype, parameter_dtype, given):
    """Each subset of them, in any dtype."""
    if norm == "rms_norm" and "bias" in given:
        pytest.skip("rms_norm has no bias")
    x = random(6, 40, dtype=dtype, device=device)
    affine = parameters(norm, 40, parameter_dtype, device)
    named = dict(zip(("weight", "bias"), affine, strict=False))
    inputs = [x, *(named[name] if name in given else None for name in ("weight", "bias"))]
    upstream = torch.randn(6, 40, device=device).to(dtype)
    output, expected = ours(norm, *inputs), torchs(norm, *(exact := doubles(*inputs)))
    assert_near(output, expected)
    grads = gradients(output, inputs, upstream)
    assert dtypes(grads) == dtypes(inputs)
    xhat = torchs(norm, exact[0].detach())
    assert_gradients_near(grads, gradients(expected, exact, upstream.double()), upstream, xhat)


LAYOUTS = {  # of a tensor of shape (4, 6, 8)
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "permuted": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand(4, 6, 8),
}


@pytest.mark.parametrize("upstream_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@with_norms
def test_every_layout(device, norm, layout, upstream_layout):
    x, upstream = torch.randn(2, 4, 6, 8, device=device)
    x = LAYOUTS[layout](x).detach().requires_grad_()
    upstream = LAYOUTS[upstream_layout](upstream)
    inputs = [x, *parameters(norm, 8, torch.float32, device)]
    results = [
        (y, *gradients(y, inputs, upstream)) for y in (ours(norm, *inputs), torchs(norm, *inputs))
    ]
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "normalized_shape"),
    [
        ((5,), (5,)),
        ((0, 5), (5,)),
        ((3, 0), (0,)),
        ((2, 0, 5), (5,)),
        ((3, 4, 5), (4, 5)),
        ((3, 4, 5), (3, 4, 5)),
        ((2, 4, 1, 3, 5), (3, 5)),
        ((1, 16385), (16385,)),
    ],
    ids=str,
)
@with_norms
def test_shapes(device, norm, shape, normalized_shape):
    x = random(*shape, device=device)
    count = len(parameters(norm, 1, torch.float32, device))
    inputs = [x, *(random(*normalized_shape, device=device) for _ in range(count))]
    upstream = torch.randn(shape, device=device)
    for make in (tuple, list, torch.Size):
        results = []
        for f in (ours, torchs):
            y = f(norm, *inputs, shape=make(normalized_shape))
            results.append((y, *gradients(y, inputs, upstream)))
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5, check_stride=True)


def test_llama_and_gemma(device):
    """Their roundings, bit for bit as Hugging Face's transformers have them."""
    x = torch.randn(6, 96, device=device).bfloat16()
    weight = torch.randn(96, device=device).bfloat16()
    xhat = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)
    llama = weight * xhat.bfloat16()
    gemma = (xhat * (1.0 + weight.float())).bfloat16()
    # An xhat that lies between two bf16 numbers may go either way: torch sums in another order.
    for actual, expected in (
        (ninefold.rms_norm(x, (96,), weight, EPS, rounding="llama"), llama),
        (ninefold.rms_norm(x, (96,), weight, EPS, weight_offset=1.0), gemma),
    ):
        assert (actual != expected).double().mean() < 0.01
        torch.testing.assert_close(actual, expected, rtol=0.008, atol=1e-6)
    assert not torch.equal(llama, ninefold.rms_norm(x, (96,), weight, EPS))


def test_rows_far_from_zero(device):
    rows = [[40000.0, 40001.0, 40002.0, 40003.0], [1234.0] * 4]
    bias = torch.randn(4, device=device)
    y = ninefold.layer_norm(torch.tensor(rows, device=device), (4,), None, bias)
    expected = torch.tensor([-1.3416355, -0.4472118, 0.4472118, 1.3416355], device=device)
    torch.testing.assert_close(y[0] - bias, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(y[1], bias)


@with_norms
def test_upstream_gradient_is_left_alone(device, norm):
    """y + norm(y) uses it twice."""
    x = random(5, 16, device=device)
    upstream = torch.randn(5, 16, device=device)
    before = upstream.clone()
    grads = []
    for f in (ours, torchs):
        y = f(norm, x)
        grads.append(torch.autograd.grad(y + f(norm, y), x, upstream)[0])
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)
    assert torch.equal(upstream, before)


@with_dtypes
def test_default_eps(device, dtype):
    """Small rows, where it decides."""
    x = (torch.randn(4, 32, device=device) * 1e-3).to(dtype)
    assert_near(ninefold.layer_norm(x, (32,)), F.layer_norm(x.double(), (32,)))
    torch.testing.assert_close(ninefold.rms_norm(x, (32,)), F.rms_norm(x, (32,)))


@with_norms
def test_in_place(device, norm):
    weight = parameters(norm, 9, torch.float32, device)[0].detach()
    x, residual = torch.randn(2, 4, 9, device=device)
    ops = torch.ops.ninefold
    expected = ours(norm, x, weight, residual=residual)
    assert getattr(ops, f"add_{norm}_")(x, residual, weight, None, EPS) is None
    assert torch.equal(x, expected[0]) and torch.equal(residual, expected[1])
    expected = ours(norm, x, weight)
    assert getattr(ops, f"{norm}_")(x, weight, None, EPS) is None
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@with_norms
def test_autocast(device, norm, dtype):
    x = random(3, 8, dtype=dtype, device=device)
    inputs = [x, *parameters(norm, 8, torch.float32, device)]
    with torch.autocast(device, torch.bfloat16):
        y, expected = ours(norm, *inputs), torchs(norm, *inputs)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected)
    upstream = torch.randn_like(y)
    grads = [gradients(output, inputs, upstream) for output in (y, expected)]
    assert dtypes(grads[0]) == dtypes(grads[1]) == dtypes(inputs)


@with_norms
@pytest.mark.parametrize("needs", [False, True])
def test_opcheck(device, norm, needs):
    ops = torch.ops.ninefold

    def check(name, *arguments):
        opcheck(getattr(ops, name).default, arguments)

    x, residual = (random(3, 4, device=device).requires_grad_(needs) for _ in range(2))
    weight, *bias = (p.requires_grad_(needs) for p in parameters(norm, 4, torch.float32, device))
    bias = bias[0] if bias else None
    check(norm, x, weight, bias, EPS)
    check(norm, x.mT.contiguous().mT, None, None, EPS, 1.0, 1)
    check(norm, x[:0], weight, bias, EPS)
    check(f"add_{norm}", x, residual, weight, bias, EPS)
    seed = torch.tensor(5, device=device)
    check(f"add_{norm}", x.bfloat16(), residual, weight, bias, EPS, 0.0, 0, 0.5, seed)
    if needs:
        return  # the rest have no derivative
    check(f"{norm}_train", x, weight, bias, EPS)
    check(f"add_{norm}_train", x, residual, weight, bias, EPS, 0.0, 0, 0.5, None, 7, 8)
    check(f"{norm}_", x.clone(), weight, bias, EPS)
    check(f"add_{norm}_", x.clone(), residual.clone(), weight, bias, EPS)
    _, h, statistics = getattr(ops, f"add_{norm}_train")(x, residual, weight, bias, EPS)
    for flags in itertools.product([False, True], repeat=4):
        if any(flags):
            *first, last = flags
            check(f"{norm}_backward", x, h, statistics, weight, *first, 0.0, residual, last)
    check(f"{norm}_backward", x.bfloat16(), h, statistics, None, True, False, True, 0.0, None, True,
          torch.bfloat16, 0.5, seed)  # fmt: skip


@with_norms
def test_what_is_not_supported(device, norm):
    x = torch.randn(3, 4, device=device)
    for dtype in (torch.float64, torch.int32, torch.complex64):
        with pytest.raises(NotImplementedError, match=f"{norm}: x"):
            ours(norm, x.to(dtype))
    function = getattr(ninefold, norm)
    with pytest.raises(NotImplementedError, match="eps"):
        function(x, (4,), eps=0.0)
    with pytest.raises(NotImplementedError, match="dropout_p"):
        function(x, (4,), dropout_p=0.5)
    with pytest.raises(NotImplementedError, match="8 dimensions"):
        ours(norm, x.reshape([1] * 7 + [3, 4]))


@with_norms
def test_wrong_input(device, norm):
    """The exception types are torch's own for the same mistake."""
    x = torch.randn(3, 4, device=device)
    meta = torch.ones(4, device="meta")
    for f in (ours, torchs):
        for shape in ((5,), (3,), ()):
            with pytest.raises(RuntimeError, match="normalized_shape"):
                f(norm, x, shape=shape)
        with pytest.raises(RuntimeError, match="weight"):
            f(norm, x, torch.ones(5, device=device))
        with pytest.raises(RuntimeError):
            f(norm, x, meta)
        for arguments in (([1.0], None, None, (1,)), (x, [1.0] * 4), (x, None, None, 4)):
            with pytest.raises(TypeError):
                f(norm, *arguments)
    with pytest.raises(RuntimeError, match="residual"):
        ours(norm, x, residual=x[:2])
    with pytest.raises(RuntimeError, match="eps"):
        getattr(ninefold, norm)(x, (4,), eps=-1.0)
    with pytest.raises(ValueError, match="rounding"):
        ours(norm, x, rounding="up")
    with pytest.raises(ValueError, match="p must"):
        ours(norm, x, residual=x, dropout_p=1.5)


@pytest.mark.parametrize(
    ("norm", "options"),
    [
        ("RMSNorm", {}),
        ("RMSNorm", {"eps": 1e-6}),
        ("RMSNorm", {"elementwise_affine": False}),
        ("LayerNorm", {}),
        ("LayerNorm", {"bias": False}),
        ("LayerNorm", {"elementwise_affine": False, "eps": 1e-3}),
    ],
)
def test_modules(device, norm, options):
    for shape in (8, (4, 8)):
        theirs = getattr(torch.nn, norm)(shape, device=device, **options)
        mine = getattr(ninefold, norm)(shape, device=device, **options)
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter)
        assert mine.load_state_dict(theirs.state_dict()) and repr(mine) == repr(theirs)
        assert [*mine.state_dict()] == [*theirs.state_dict()] and isinstance(mine, type(theirs))
        x = torch.randn(3, 4, 8, device=device)
        torch.testing.assert_close(mine(x), theirs(x), rtol=1e-5, atol=1e-5)
        y, h = mine(x, x)
        torch.testing.assert_close(y, theirs(h), rtol=1e-5, atol=1e-5)
