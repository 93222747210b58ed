"""Activation functions that gate a second tensor: act(gate) * up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .activation import RELU, SILU, SWIGLU_CLAMP, Approximate, gelu_kind
from .in_place import refuse_leaves
from .op import Op


def _fake(gate, up, *_):
    shape = gate.shape if up is not None else (*gate.shape[:-1], gate.shape[-1] // 2)
    return gate.new_empty(shape)


def _save(ctx, inputs, output):
    gate, up, *ctx.options, ctx.overwrite = inputs
    ctx.save_for_backward(gate, up)


def _gradient(ctx, grad):
    gate, up = ctx.saved_tensors
    if ctx.overwrite:
        _backward_(grad, gate, up, *ctx.options)
        grad_gate, grad_up = gate.detach(), None if up is None else up.detach()
    else:
        grad_gate, grad_up = _backward(grad, gate, up, *ctx.options)
    needs_grad_gate, needs_grad_up, *others = ctx.needs_input_grad
    return (
        grad_gate if needs_grad_gate else None,
        grad_up if needs_grad_up else None,
        *(None for _ in others),
    )


def _fake_gradient(grad, gate, up, *_):
    grad_up = gate.new_empty(0) if up is None else up.new_empty(up.shape)
    return gate.new_empty(gate.shape), grad_up


def _autocast(device, gate, up, *options):  # as gate * up would do it
    if up is not None and gate.dtype != up.dtype:
        dtype = torch.promote_types(gate.dtype, up.dtype)
        gate, up = gate.to(dtype), up.to(dtype)
    return gate, up, *options


_backward = Op("gated_activation_backward", fake=_fake_gradient)
_backward_ = Op("gated_activation_backward_", fake=lambda *args: None)
_gated = Op("gated_activation", fake=_fake, save=_save, backward=_gradient, autocast=_autocast)


def _gate(gate, up, kind, interleaved, inplace_backward, alpha=0.0, limit=0.0) -> Tensor:
    if not interleaved and not inplace_backward and not alpha:
        return _gated(gate, up, kind)
    if inplace_backward:
        refuse_leaves(gate, up)
    return _gated(gate, up, kind, interleaved, alpha, limit, inplace_backward)


def swiglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    interleaved: bool = False,
    inplace_backward: bool = False,
) -> Tensor:
    """silu(gate) * up (Shazeer 2020), in fp32 with one rounding.

    gate, up: (..., N), alike; fp32, fp16 or bf16; any strides. Under autocast unlike dtypes are
        promoted. Without `up`, gate is (..., 2 N) and has both: [g0 g1 ... u0 u1 ...], or
        [g0 u0 g1 u1 ...] where `interleaved`.
    inplace_backward: the backward lays the gradients over gate and up, and so needs no memory for
        them. Both are spoilt then: whoever else saved them for a backward that comes later, or runs
        this one twice, gets torch's error about modified variables, and nobody may read them
        afterwards. Neither may be a leaf that requires a gradient.

    Returns a fresh contiguous tensor (..., N). Nothing but gate and up is kept for the backward.
    Raises NotImplementedError for another dtype, RuntimeError for unlike shapes, dtypes or devices,
    an odd 2 N, or `up` together with `interleaved`.
    """
    return _gate(gate, up, SILU, interleaved, inplace_backward)


def geglu(
    gate: Tensor,
    up: Tensor | None = None,
    approximate: Approximate = "none",
    *,
    interleaved: bool = False,
    inplace_backward: bool = False,
) -> Tensor:
    """gelu(gate, approximate) * up. All else as in `swiglu`."""
    return _gate(gate, up, gelu_kind(approximate), interleaved, inplace_backward)


def reglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    interleaved: bool = False,
    inplace_backward: bool = False,
) -> Tensor:
    """relu(gate) * up. All else as in `swiglu`."""
    return _gate(gate, up, RELU, interleaved, inplace_backward)


def swiglu_clamped(
    gate: Tensor,
    up: Tensor | None = None,
    alpha: float = 1.702,
    limit: float = 7.0,
    *,
    interleaved: bool = False,
    inplace_backward: bool = False,
) -> Tensor:
    """g sigmoid(alpha g) (u + 1) with g = min(gate, limit) and u = up held within -limit and limit,
    as in OpenAI's gpt-oss, where gate and up are interleaved. All else as in `swiglu`.

    alpha, limit: positive, or RuntimeError. An infinite limit clamps nothing.
    """
    if not (alpha > 0 and limit > 0):
        raise RuntimeError(f"alpha and limit must be positive, got {alpha} and {limit}")
    return _gate(gate, up, SWIGLU_CLAMP, interleaved, inplace_backward, alpha, limit)


class SwiGLU(nn.Module):
    """`swiglu` as a module without parameters."""

    def __init__(self, *, interleaved: bool = False, inplace_backward: bool = False):
        super().__init__()
        self.interleaved = interleaved
        self.inplace_backward = inplace_backward

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return swiglu(
            gate, up, interleaved=self.interleaved, inplace_backward=self.inplace_backward
        )

    def extra_repr(self) -> str:
        return f"interleaved={self.interleaved}, inplace_backward={self.inplace_backward}"
