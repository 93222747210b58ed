"""How the tests hold a function against float64: its gradients, those that are asked for,
and one rounding of each result."""

import torch


def spiky(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Normal numbers with some large channels, as hidden states have them."""
    values = torch.randn(shape, device=device)
    values[..., ::7] *= 12
    return values.to(dtype)


def gradients(function, *inputs: torch.Tensor, upstream: torch.Tensor) -> tuple:
    inputs = [x.detach().requires_grad_() for x in inputs]
    output = function(*inputs)
    return output.detach(), *torch.autograd.grad(output, inputs, upstream.to(output.dtype))


def assert_only_wanted(
    function, wanted: tuple, *inputs: torch.Tensor, upstream: torch.Tensor
) -> None:
    """The gradients that are wanted are those that come where all are, and no other is made."""
    _, *every = gradients(function, *inputs, upstream=upstream)
    inputs = [t.clone().requires_grad_(w) for t, w in zip(inputs, wanted, strict=True)]
    output = function(*inputs)
    assert output.requires_grad == any(wanted)
    if any(wanted):
        output.backward(upstream)
    for tensor, expected, want in zip(inputs, every, wanted, strict=True):
        assert torch.equal(tensor.grad, expected) if want else tensor.grad is None


def assert_rounded_once(
    actual: torch.Tensor, exact: torch.Tensor, *, rtol: float, atol: float
) -> None:
    """Half a unit in the last place of a 16-bit dtype, and rtol and atol for the fp32 in which all
    is computed."""
    half = torch.finfo(actual.dtype).eps / 2 if actual.dtype != torch.float32 else 0.0
    torch.testing.assert_close(actual.double(), exact, rtol=half + rtol, atol=atol)
