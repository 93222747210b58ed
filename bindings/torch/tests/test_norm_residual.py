"""rms_norm and layer_norm after a residual addition, and after dropout before that."""

import itertools

import pytest
import torch
from norm_reference import (
    assert_near,
    doubles,
    ours,
    parameters,
    random,
    torchs,
    with_dtypes,
    with_norms,
)


@pytest.mark.parametrize("wishes", [*itertools.product([False, True], repeat=3)], ids=str)
@pytest.mark.parametrize("stream", [None, torch.float32], ids=["same", "fp32"])
@with_dtypes
@with_norms
def test_residual(device, norm, dtype, stream, wishes):
    """Each subset of gradients of input, residual and weight, from each subset of the outputs."""
    x = random(3, 5, 48, dtype=dtype, device=device).requires_grad_(wishes[0])
    residual = random(3, 5, 48, dtype=stream or dtype, device=device).requires_grad_(wishes[1])
    affine = [p.requires_grad_(wishes[2]) for p in parameters(norm, 48, dtype, device)]
    inputs = [x, residual, *affine]
    y, h = ours(norm, x, *inputs[2:], residual=residual)
    assert y.dtype == dtype and h.dtype == residual.dtype
    assert torch.equal(h, (x.float() + residual.float()).to(h.dtype))
    # The sum is rounded where it is stored, so what follows is a function of that.
    hidden, *exact = doubles(h, *inputs[2:])
    hidden.requires_grad_(wishes[0] or wishes[1])
    expected = torchs(norm, hidden, *exact)
    assert_near(y, expected)
    upstream = [torch.randn_like(t) for t in (y, h)]
    assert h.requires_grad == any(wishes[:2]) and y.requires_grad == any(wishes)
    for used in ([0, 1], [0], [1]) if h.requires_grad else ([0],) if y.requires_grad else ():
        outputs = [(y, h)[i] for i in used]
        wanted = [t for t in inputs if t.requires_grad]
        grads = torch.autograd.grad(
            outputs, wanted, [upstream[i] for i in used], retain_graph=True, allow_unused=True
        )
        grads = dict(zip(map(id, wanted), grads, strict=True))
        wanted = [t for t in (hidden, *exact) if t.requires_grad]
        sides = torch.autograd.grad(
            [(expected, hidden * 1)[i] for i in used], wanted,
            [upstream[i].double() for i in used], retain_graph=True, allow_unused=True,
        )  # fmt: skip
        sides = dict(zip(map(id, wanted), sides, strict=True))
        for tensor in (x, residual):
            if tensor.requires_grad:
                assert grads[id(tensor)].dtype == tensor.dtype
                assert_near(grads[id(tensor)], sides[id(hidden)])
        for tensor, one in zip(inputs[2:], exact, strict=True):
            if one.requires_grad and used != [1]:
                size = upstream[0].double().abs().flatten(0, -2).sum(0) * 4
                assert_near(grads[id(tensor)], sides[id(one)], size)


@with_norms
def test_a_tensor_added_to_itself(device, norm):
    """Its two gradients are one tensor, and must both arrive."""
    x = random(4, 9, device=device)
    upstream = torch.randn(2, 4, 9, device=device)
    results = []
    for y in (ours(norm, x, residual=x), (torchs(norm, x + x), x + x)):
        results.append((*y, *torch.autograd.grad(y, x, [*upstream])))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@with_dtypes
@with_norms
def test_dropout_before_the_addition(device, norm, dtype):
    x, residual = (random(64, 64, dtype=dtype, device=device) for _ in range(2))
    weight = parameters(norm, 64, dtype, device)[0]
    upstream = [torch.randn(64, 64, device=device).to(dtype) for _ in range(2)]

    def run(p):
        torch.manual_seed(3)
        y, h = ours(norm, x, weight, residual=residual, dropout_p=p)
        return y, h, *torch.autograd.grad((y, h), (x, residual, weight), upstream)

    def which(p):
        torch.manual_seed(3)
        zero = torch.zeros_like(residual)
        return ours(norm, torch.ones_like(x), residual=zero, dropout_p=p)[1] == 0

    y, h, dx, dresidual, dweight = run(0.25)
    assert all(map(torch.equal, run(0.25), (y, h, dx, dresidual, dweight)))
    dropped = which(0.25)
    assert torch.equal(h[dropped], residual[dropped])
    assert 0.2 < dropped.double().mean() < 0.3
    kept = (x.double() / 0.75 + residual.double()).detach()
    assert_near(h[~dropped], kept[~dropped])
    assert torch.equal(dx == 0, dropped)
    torch.testing.assert_close(  # both are rounded
        dx[~dropped].double(), dresidual[~dropped].double() / 0.75,
        rtol=torch.finfo(dtype).eps, atol=1e-6,
    )  # fmt: skip
    # The rest is the norm of h.
    hidden = h.detach().requires_grad_()
    y_of_h, h_of_h = ours(norm, torch.zeros_like(hidden), weight, residual=hidden)
    assert torch.equal(y, y_of_h)
    grads = torch.autograd.grad((y_of_h, h_of_h), (hidden, weight), upstream)
    assert torch.equal(dresidual, grads[0]) and torch.equal(dweight, grads[1])

    y, h, dx, *_ = run(1.0)
    assert torch.equal(h, residual) and not dx.any()
    again = ours(norm, x, residual=residual, dropout_p=0.25)[1]  # without a new seed
    assert not torch.equal(again, run(0.25)[1])
