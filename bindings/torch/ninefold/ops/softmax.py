"""softmax and log_softmax over any dimension, with scale, mask and causal mask in the same pass."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from .op import Op

Causal = Literal[False, True, "bottom_right", "top_left"]
_CAUSAL = {False: 0, True: 1, "bottom_right": 1, "top_left": 2}  # nf_causal


def _register(name: str) -> Op:
    def fake(input, dim, dtype=None, mask=None, scale=1.0, causal=0):
        return torch.empty(input.shape, dtype=dtype or input.dtype, device=input.device)

    def save(ctx, inputs, output):
        input, dim, _, mask, scale, causal = inputs
        ctx.save_for_backward(output)
        if input.dtype == output.dtype and scale == 1.0 and causal == 0:
            ctx.options = (dim,)  # the rest are defaults
        else:
            ctx.options = dim, input.dtype, scale, causal
        if ctx.needs_input_grad[3]:
            ctx.mask = mask.shape, mask.dtype, scale

    def backward(ctx, grad):
        grad_input = _backward(grad, *ctx.saved_tensors, *ctx.options)
        grad_mask = None
        if ctx.needs_input_grad[3]:  # the mask was broadcast, then added to scale * input
            shape, dtype, scale = ctx.mask
            grad_mask = (grad_input / scale).sum_to_size(shape).to(dtype)
        return grad_input, None, None, grad_mask, None, None

    def fake_backward(grad, output, dim, dtype=None, scale=1.0, causal=0):
        return torch.empty(output.shape, dtype=dtype or output.dtype, device=output.device)

    def autocast(device, input, dim, dtype, *options):
        if device == "cuda" and dtype is None:  # torch's autocast on CPU leaves softmax alone
            dtype = torch.float32
        return input, dim, dtype, *options

    _backward = Op(f"{name}_backward", fake=fake_backward)
    Op(f"{name}_", fake=lambda *args: None)
    return Op(name, fake=fake, save=save, backward=backward, autocast=autocast)


_softmax = _register("softmax")
_log_softmax = _register("log_softmax")


def softmax(
    input: Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    out: None = None,
    scale: float = 1.0,
    mask: Tensor | None = None,
    causal: Causal = False,
) -> Tensor:
    """`torch.softmax`, of `scale * input + mask` over the positions that the masks allow.

    Args:
        input: any shape of up to 8 dimensions, any strides; fp32, fp16 or bf16, on CPU or CUDA.
        dim: the dimension that sums to 1.
        dtype: of the result. The input is cast to it first, as in torch; from fp16 or bf16 to fp32
            that costs no pass of its own. Under CUDA autocast the default is fp32.
        out: not supported.
        scale: finite and not 0.
        mask: broadcast to the shape of `input`. Boolean or uint8: true means allowed, as in
            `scaled_dot_product_attention`. fp32 or the input's dtype: added, and -inf means not
            allowed; it may require a gradient.
        causal: True or "bottom_right": the last query sees all keys, as a KV cache needs it.
            "top_left": the first query sees the first key alone. Keys run along `dim`, queries
            along the last of the other dimensions.

    Returns:
        A new contiguous tensor of the input's shape. A row with nothing allowed is 0, not NaN.

    Raises:
        IndexError: `dim` is out of range.
        NotImplementedError: another dtype, more than 8 dimensions, or `out`.
        RuntimeError: the mask does not broadcast or is on another device; CUDA tensors where there
            is no CUDA.
        ValueError: an unknown `causal`.
    """
    return _call(_softmax, input, dim, dtype, out, scale, mask, causal)


def log_softmax(
    input: Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    out: None = None,
    scale: float = 1.0,
    mask: Tensor | None = None,
    causal: Causal = False,
) -> Tensor:
    """`torch.log_softmax`; everything else is as for `softmax`, and what is masked gives -inf."""
    return _call(_log_softmax, input, dim, dtype, out, scale, mask, causal)


def _call(op: Op, input, dim, dtype, out, scale, mask, causal) -> Tensor:
    if dtype is None and out is None and mask is None and scale == 1.0 and causal is False:
        return op(input, dim)
    if out is not None:
        raise NotImplementedError("softmax: out is not supported")
    if causal not in _CAUSAL:
        raise ValueError(f"softmax: causal: expected one of {[*_CAUSAL]}, got {causal!r}")
    fused = dtype == torch.float32 and input.dtype in (torch.float16, torch.bfloat16)
    if dtype is not None and not fused:
        input = input.to(dtype)
    return op(input, dim, dtype, mask, scale, _CAUSAL[causal])


class Softmax(nn.Softmax):
    """`torch.nn.Softmax` by `ninefold.softmax`; `dim` must be given."""

    def __init__(self, dim: int):
        super().__init__(dim)

    def forward(self, input: Tensor) -> Tensor:
        return softmax(input, self.dim)


class LogSoftmax(nn.LogSoftmax):
    """`torch.nn.LogSoftmax` by `ninefold.log_softmax`; `dim` must be given."""

    def __init__(self, dim: int):
        super().__init__(dim)

    def forward(self, input: Tensor) -> Tensor:
        return log_softmax(input, self.dim)
