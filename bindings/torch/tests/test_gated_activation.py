"""Gated activation functions against their composition of torch's in float64."""

import itertools
from functools import partial

import closeness
import pytest
import torch
import torch.nn.functional as F
from closeness import assert_only_wanted, gradients, spiky
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

import ninefold

# gate and up multiply what fp32 leaves.
assert_rounded_once = partial(closeness.assert_rounded_once, rtol=2e-6, atol=4e-6)
DTYPES = torch.float32, torch.bfloat16, torch.float16


def clamped(gate, up, alpha=1.702, limit=7.0):
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


ACTIVATIONS = {
    "swiglu": (ninefold.swiglu, lambda gate, up: F.silu(gate) * up),
    "geglu": (ninefold.geglu, lambda gate, up: F.gelu(gate) * up),
    "geglu_tanh": (
        partial(ninefold.geglu, approximate="tanh"),
        lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    ),
    "reglu": (ninefold.reglu, lambda gate, up: F.relu(gate) * up),
    "swiglu_clamped": (ninefold.swiglu_clamped, clamped),
    "swiglu_clamped_2": (
        partial(ninefold.swiglu_clamped, alpha=1.3, limit=2.0),
        partial(clamped, alpha=1.3, limit=2.0),
    ),
}
with_activations = pytest.mark.parametrize(
    ("ours", "composed"), ACTIVATIONS.values(), ids=ACTIVATIONS
)


def joined(gate: torch.Tensor, up: torch.Tensor, interleaved: bool) -> torch.Tensor:
    if interleaved:
        return torch.stack((gate, up), -1).flatten(-2)
    return torch.cat((gate, up), -1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@with_activations
def test_against_float64(device, dtype, ours, composed):
    gate, up, upstream = (spiky(3, 5, 37, dtype=dtype, device=device) for _ in range(3))
    before = [t.clone() for t in (gate, up, upstream)]
    y, dgate, dup = gradients(ours, gate, up, upstream=upstream)
    exact = gradients(composed, gate.double(), up.double(), upstream=upstream)
    for actual, expected in zip((y, dgate, dup), exact):
        assert actual.dtype == dtype
        assert_rounded_once(actual, expected)
    # The forms of one tensor do the same arithmetic.
    for interleaved in (False, True):
        both = joined(gate, up, interleaved)
        y_both, dboth = gradients(partial(ours, interleaved=interleaved), both, upstream=upstream)
        assert torch.equal(y_both, y) and torch.equal(dboth, joined(dgate, dup, interleaved))
    assert all(torch.equal(a, b) for a, b in zip((gate, up, upstream), before))


@pytest.mark.parametrize("wanted", [*itertools.product([False, True], repeat=2)], ids=str)
def test_each_subset_of_gradients(device, wanted):
    gate, up, upstream = (torch.randn(5, 12, device=device) for _ in range(3))
    assert_only_wanted(ninefold.swiglu, wanted, gate, up, upstream=upstream)


LAYOUTS = {
    "halves of one": lambda x: x[:, :6],
    "transposed": lambda x: x.transpose(0, 1),
    "every second": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(6, -1),
    "empty": lambda x: x[:0],
    "no columns": lambda x: x[:, :0],
    "scalar": lambda x: x[0, 0],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@with_activations
def test_layouts(device, ours, composed, layout):
    gate, up, upstream = (
        layout(spiky(4, 12, dtype=torch.float32, device=device)) for _ in range(3)
    )
    for actual, exact in zip(
        gradients(ours, gate, up, upstream=upstream),
        gradients(composed, gate.double(), up.double(), upstream=upstream),
    ):
        assert actual.shape == exact.shape and actual.is_contiguous()
        assert_rounded_once(actual, exact)


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(device, grad):
    operators = torch.ops.ninefold
    gate, up = (torch.randn(3, 8, device=device, requires_grad=grad) for _ in range(2))
    for arguments in [
        (gate, up, 2),
        (gate[:, ::2], up[:, 1::2], 1),
        (gate[:0], up[:0], 2),
        (gate, None, 3),
        (gate, None, 5, True, 1.5, 6.0),
    ]:
        opcheck(operators.gated_activation.default, arguments)
        if not grad:
            backward = (torch.randn(operators.gated_activation(*arguments).shape, device=device),
                        *arguments)
            opcheck(operators.gated_activation_backward.default, backward)
            copies = [t.clone() if isinstance(t, torch.Tensor) else t for t in backward]
            opcheck(operators.gated_activation_backward_.default, tuple(copies))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("inplace_backward", [False, True])
def test_compiles_whole_and_once(device, backend, inplace_backward):
    def block(x, weight):
        hidden = x @ weight
        y = ninefold.swiglu(*hidden.chunk(2, -1), inplace_backward=inplace_backward)
        return y + ninefold.geglu(x @ weight, interleaved=True, inplace_backward=inplace_backward)

    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
    for rows in (4, 7, 9):
        x, weight, upstream = (
            torch.randn(s, device=device) for s in [(rows, 16), (16, 24), (rows, 12)]
        )
        for actual, eager in zip(
            gradients(compiled, x, weight, upstream=upstream),
            gradients(block, x, weight, upstream=upstream),
        ):
            torch.testing.assert_close(actual, eager)
    assert counter.frame_count == 1


@pytest.mark.parametrize("form", ["two", "concatenated", "interleaved"])
def test_inplace_backward(device, form):
    def function(gate, up, **options):
        gate, up = gate * 2, up * 3
        if form == "two":
            return ninefold.swiglu(gate, up, **options)
        both = joined(gate, up, form == "interleaved")
        return ninefold.swiglu(both, interleaved=form == "interleaved", **options)

    gate, up, upstream = (torch.randn(5, 12, device=device) for _ in range(3))
    before = upstream.clone()
    expected = gradients(function, gate, up, upstream=upstream)
    overwriting = partial(function, inplace_backward=True)
    for run in (overwriting, partial(checkpoint, overwriting, use_reentrant=False)):
        for actual, exact in zip(gradients(run, gate, up, upstream=upstream), expected):
            assert torch.equal(actual, exact)
        assert torch.equal(upstream, before)


def test_inplace_backward_lays_the_gradients_over_gate_and_up(device):
    leaf = torch.randn(5, 12, device=device, requires_grad=True)
    gate, up = leaf * 2, leaf * 3
    output = ninefold.swiglu(gate, up, inplace_backward=True)
    grads = torch.autograd.grad(output, (gate, up), torch.randn_like(output), retain_graph=True)
    assert [g.data_ptr() for g in grads] == [gate.data_ptr(), up.data_ptr()]
    # What was overwritten is not silently used again: neither here nor by another operator.
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    gate, up = leaf * 2, leaf * 3
    squared = gate * gate
    ninefold.swiglu(gate, up, inplace_backward=True).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()
    with pytest.raises(RuntimeError, match="leaf"):
        ninefold.swiglu(leaf, leaf * 2, inplace_backward=True)


def test_autocast_promotes_as_a_product_does(device):
    gate, up = torch.randn(3, 8, device=device), torch.randn(3, 8, device=device).bfloat16()
    gate.requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        y = ninefold.swiglu(gate, up)
        assert y.dtype == (F.silu(gate) * up).dtype == torch.float32
        assert ninefold.swiglu(up, up).dtype == torch.bfloat16
    y.sum().backward()
    assert gate.grad.dtype == torch.float32


def test_inference_mode(device):
    with torch.inference_mode():
        gate, up = torch.randn(3, 8, device=device), torch.randn(3, 8, device=device)
        torch.testing.assert_close(ninefold.swiglu(gate, up), F.silu(gate) * up)


def test_module(device):
    gate, up = torch.randn(3, 8, device=device), torch.randn(3, 8, device=device)
    module = ninefold.SwiGLU(interleaved=True)
    assert repr(module) == "SwiGLU(interleaved=True, inplace_backward=False)"
    assert not module.state_dict()
    assert torch.equal(module(joined(gate, up, True)), ninefold.SwiGLU()(gate, up))


def test_wrong_input(device):
    gate, up = torch.randn(3, 8, device=device), torch.randn(3, 8, device=device)
    with pytest.raises(NotImplementedError, match="fp32, fp16"):
        ninefold.swiglu(gate.double(), up.double())
    for other in (up[:2], up[:, :7], up.bfloat16(), up[0]):
        with pytest.raises(RuntimeError, match="up"):
            ninefold.swiglu(gate, other)
    with pytest.raises(RuntimeError, match="even"):
        ninefold.swiglu(gate[:, :7])
    with pytest.raises(RuntimeError, match="up"):
        ninefold.swiglu(gate, up, interleaved=True)
    with pytest.raises(RuntimeError, match="approximate"):
        ninefold.geglu(gate, up, "erf")
    for options in ({"alpha": 0.0}, {"limit": -1.0}, {"alpha": float("nan")}):
        with pytest.raises(RuntimeError, match="positive"):
            ninefold.swiglu_clamped(gate, up, **options)


def test_double_backward_says_no(device):
    gate = torch.randn(3, 8, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(ninefold.swiglu(gate).square().sum(), gate, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        grad.sum().backward()
