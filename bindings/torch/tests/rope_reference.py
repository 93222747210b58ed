"""Rotary position embedding by its definition, in float64."""

from functools import partial

import closeness
import torch

# The fp32 cos, sin and products of numbers up to 8.
assert_rounded_once = partial(closeness.assert_rounded_once, rtol=0.0, atol=4e-6)
DTYPES = torch.float32, torch.bfloat16, torch.float16


def angles(positions: torch.Tensor, width: int, base: float = 10000.0) -> torch.Tensor:
    """(..., width / 2) in float64."""
    frequencies = base ** (-torch.arange(0, width, 2, device=positions.device).double() / width)
    return positions.double()[..., None] * frequencies


def turned(x: torch.Tensor, angle: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """x (B, S, H, D) by the angles (B or 1, S, width / 2), in float64."""
    width = 2 * angle.shape[-1]
    x, rest = x.double().split([width, x.shape[-1] - width], -1)
    cos, sin = angle.cos().unsqueeze(-2), angle.sin().unsqueeze(-2)
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        x = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = x.chunk(2, -1)
        x = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((x, rest), -1)


def gradients(function, *inputs: torch.Tensor, upstreams: tuple) -> tuple:
    inputs = [x.detach().requires_grad_() for x in inputs]
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = torch.autograd.grad(
        outputs, inputs, [u.to(y.dtype) for u, y in zip(upstreams, outputs)]
    )
    return *(y.detach() for y in outputs), *grads


def queries_and_keys(*shape: int, dtype=torch.float32, device: str) -> tuple:
    """q with shape (B, S, H, D), k with a single head."""
    B, S, H, D = shape
    return tuple(torch.randn(B, S, h, D, device=device).to(dtype) for h in (H, 1))
