"""The sum of two tensors: the smallest operator, and the one to copy when adding another."""

from __future__ import annotations

from torch import Tensor

from .op import Op


def _fake(input, other):
    return input.new_empty(input.shape)


def _gradient(ctx, grad):
    return tuple(grad if needed else None for needed in ctx.needs_input_grad)


_vector_add = Op("vector_add", fake=_fake, backward=_gradient)


def vector_add(input: Tensor, other: Tensor) -> Tensor:
    """input + other, without broadcasting.

    input, other: of one shape, dtype and device; fp32, fp16 or bf16; any strides.

    Returns a fresh contiguous tensor. Raises NotImplementedError for another dtype, RuntimeError
    for unlike shapes, dtypes or devices.
    """
    return _vector_add(input, other)
