"""Activation functions of one tensor, with or without a bias before them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from .op import Op

Approximate = Literal["none", "tanh"]
GELU_TANH, GELU_ERF, SILU, RELU, RELU2, SWIGLU_CLAMP = range(6)  # nf_activation_kind


def gelu_kind(approximate: str) -> int:
    if approximate == "none":
        return GELU_ERF
    if approximate == "tanh":
        return GELU_TANH
    raise RuntimeError(f"approximate must be 'none' or 'tanh', got {approximate!r}")


def _fake(input, *_):
    return input.new_empty(input.shape)


def _save(ctx, inputs, output):
    input, ctx.kind = inputs
    ctx.save_for_backward(input)


def _gradient(ctx, grad):
    return _activation_backward(grad, *ctx.saved_tensors, ctx.kind), None


_activation_backward = Op("activation_backward", fake=lambda grad, input, kind: _fake(input))
_activation_ = Op("activation_", fake=lambda *args: None)
_activation = Op("activation", fake=_fake, save=_save, backward=_gradient)


def _save_with_bias(ctx, inputs, output):
    input, bias, ctx.kind = inputs
    ctx.save_for_backward(input, bias)


def _gradient_with_bias(ctx, grad):
    needs_grad_bias = ctx.needs_input_grad[1]
    grad_input, grad_bias = _bias_activation_backward(
        grad, *ctx.saved_tensors, ctx.kind, needs_grad_bias
    )
    return (
        grad_input if ctx.needs_input_grad[0] else None,
        grad_bias if needs_grad_bias else None,
        None,
    )


def _fake_gradient_with_bias(grad, input, bias, kind, needs_grad_bias=True):
    return _fake(input), _fake(bias) if needs_grad_bias else bias.new_empty(0)


_bias_activation_backward = Op("bias_activation_backward", fake=_fake_gradient_with_bias)
_bias_activation = Op(
    "bias_activation",
    fake=_fake,
    save=_save_with_bias,
    backward=_gradient_with_bias,
    # The bias is a parameter, and follows what the linear layer before it made.
    autocast=lambda device, input, bias, kind: (input, bias.to(input.dtype), kind),
)


def gelu(input: Tensor, approximate: Approximate = "none") -> Tensor:
    """torch.nn.functional.gelu: x Phi(x), or with "tanh" its usual approximation.

    input: any shape and strides; fp32, fp16 or bf16. Computed in fp32, rounded once; the backward
        makes everything again from the input, so nothing else is kept.

    Returns a fresh contiguous tensor of that shape and dtype. Raises NotImplementedError for
    another dtype, RuntimeError for another `approximate`.
    """
    return _activation(input, gelu_kind(approximate))


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """torch.nn.functional.silu: x sigmoid(x). Shapes, dtypes and errors as those of `gelu`.

    inplace: the result is laid over the input, and that is returned. Where a gradient will be asked
        for, the backward needs the input, of which a copy is kept, as torch keeps one.
    """
    if not inplace:
        return _activation(input, SILU)
    if torch.is_grad_enabled() and input.requires_grad:
        return input.copy_(_activation(input.clone(), SILU))
    _activation_(input, SILU)
    return input


def relu2(input: Tensor) -> Tensor:
    """max(x, 0)^2. Shapes, dtypes and errors as those of `gelu`."""
    return _activation(input, RELU2)


def bias_gelu(input: Tensor, bias: Tensor, approximate: Approximate = "none") -> Tensor:
    """gelu(input + bias) in one pass; the sum is not rounded in between.

    input: (..., N), fp32, fp16 or bf16. bias: (N), of the input's dtype; under autocast it is cast
        to that. Its gradient is summed in fp32 in a fixed order: the same bits each time.

    Returns a fresh contiguous tensor like the input. Raises NotImplementedError for another dtype,
    RuntimeError for unlike shapes or dtypes or another `approximate`.
    """
    return _bias_activation(input, bias, gelu_kind(approximate))


class GELU(nn.GELU):
    """torch.nn.GELU, by `gelu`."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu(input, self.approximate)


class SiLU(nn.SiLU):
    """torch.nn.SiLU, by `silu`."""

    def forward(self, input: Tensor) -> Tensor:
        return silu(input, self.inplace)
