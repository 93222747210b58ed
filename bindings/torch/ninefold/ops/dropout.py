"""Dropout, alone and with the residual addition that follows it."""

from __future__ import annotations

import torch
from torch import _C, Tensor, nn

from .op import Op


def _fake(input, *_):
    return input.new_empty(input.shape)


def _save(ctx, inputs, output):
    *_, ctx.p, seed_tensor, seed, offset = inputs
    ctx.save_for_backward(seed_tensor)
    ctx.numbers = seed, offset


def _grad_input(ctx, grad):
    return _backward(grad, ctx.p, *ctx.saved_tensors, *ctx.numbers)


def _gradient(ctx, grad):
    return _grad_input(ctx, grad), None, None, None, None


def _gradient_add(ctx, grad):
    needs_grad_input, needs_grad_residual, *others = ctx.needs_input_grad
    return (
        _grad_input(ctx, grad) if needs_grad_input else None,
        grad if needs_grad_residual else None,
        *(None for _ in others),
    )


def _autocast_add(device, input, residual, *options):  # as input + residual would do it
    dtype = torch.promote_types(input.dtype, residual.dtype)
    return input.to(dtype), residual.to(dtype), *options


_backward = Op("dropout_backward", fake=_fake)
_dropout_ = Op("dropout_", fake=lambda *args: None)
_dropout = Op("dropout", fake=_fake, save=_save, backward=_gradient)
_dropout_add = Op(
    "dropout_add", fake=_fake, save=_save, backward=_gradient_add, autocast=_autocast_add
)


def draw(input: Tensor) -> tuple:
    """What makes the mask of one call, from torch's generator of the input's device: the arguments
    seed_tensor, or seed_tensor, seed and offset, of the operators.

    Where the device's generator counts, as CUDA's does, its seed and count are taken, and it counts
    on: no kernel runs. Otherwise, and where the call is recorded to run again (traced, or captured
    in a CUDA graph), a number is drawn on the device, so that each run draws its own.
    """
    if (
        not input.is_cuda
        or torch.compiler.is_compiling()
        or _C._len_torch_dispatch_stack()
        or torch.cuda.is_current_stream_capturing()
    ):
        return (torch.randint(2**63 - 1, (), device=input.device),)
    generator = torch.cuda.default_generators[input.device.index]
    offset = generator.get_offset()
    generator.set_offset(offset + 4)  # torch counts in fours
    seed = generator.initial_seed()
    return None, seed - 2**64 if seed >= 2**63 else seed, offset


def check_p(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be within 0 and 1, got {p}")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """torch.nn.functional.dropout: each element is 0 with probability p, or else input / (1 - p).

    Which elements are dropped follows from torch.manual_seed and the calls since, as with torch's
    own, but they are other elements. The mask is not kept: the backward makes it again. p is taken
    to the nearest multiple of 2^-16, and a dropped element is 0 even where the input is not finite.

    input: any shape and strides; fp32, fp16 or bf16.
    inplace: the result is laid over the input, and that is returned. Where a gradient is needed it
        is made beside and copied.

    Returns a fresh contiguous tensor, or as torch does the input itself where nothing can be
    dropped: with p = 0, or not `training`. Raises ValueError for a p outside of 0 to 1,
    NotImplementedError for another dtype.
    """
    check_p(p)
    if not training or p == 0.0:
        return input
    if not inplace:
        return _dropout(input, p, *draw(input))
    if torch.is_grad_enabled() and input.requires_grad:
        return input.copy_(_dropout(input, p, *draw(input)))
    _dropout_(input, p, *draw(input))
    return input


def dropout_add(input: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """residual + dropout(input, p, training) in one pass and with one rounding.

    input, residual: of one shape, dtype and device; under autocast unlike dtypes are promoted. All
        else as in `dropout`.

    Returns a fresh contiguous tensor, always.
    """
    check_p(p)
    if not training or p == 0.0:
        return _dropout_add(input, residual, 0.0)
    return _dropout_add(input, residual, p, *draw(input))


class Dropout(nn.Dropout):
    """torch.nn.Dropout, by `dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training, self.inplace)
