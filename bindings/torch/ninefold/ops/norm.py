"""rms_norm and layer_norm, alone or after dropout and the residual addition that come before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from .dropout import check_p, draw
from .op import Op

Rounding = Literal["once", "llama"]
_ROUNDING = {"once": 0, "llama": 1}  # nf_norm_rounding


def _empty(like: Tensor, shape=None, dtype=None) -> Tensor:
    shape = like.shape if shape is None else shape
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def _register(name: str, rows: int, autocast: Callable | None = None) -> tuple[Op, Op]:
    """The norm alone, and the one with an addition. `rows` counts the statistics of a row."""

    def statistics(input):
        return _empty(input, (rows, *input.shape[:-1]), torch.float32)

    def fake(input, *_):
        return _empty(input)

    def fake_train(input, *_):
        return _empty(input), statistics(input)

    def fake_add(input, residual, *_):
        return _empty(input), _empty(residual)

    def fake_add_train(input, residual, *_):
        return _empty(input), _empty(residual), statistics(input)

    def fake_backward(
        grad_output, hidden, statistics, weight, input_grad, weight_grad, bias_grad,
        weight_offset=0.0, grad_hidden=None, residual_grad=False, input_dtype=None, *dropout,
    ):  # fmt: skip
        columns = hidden.shape[-1:]
        parameter = torch.float32 if weight is None else weight.dtype
        grads = (
            (input_grad, hidden.shape, input_dtype),
            (weight_grad, columns, parameter),
            (bias_grad, columns, parameter),
            (residual_grad, hidden.shape, None),
        )
        return [_empty(hidden, shape, dtype) for wanted, shape, dtype in grads if wanted]

    def save(ctx, inputs, output):
        input, weight, _, _, weight_offset, _ = inputs
        ctx.save_for_backward(input, output[1], weight)
        ctx.options = (weight_offset,) if weight_offset else ()

    def backward(ctx, grad):
        wanted = ctx.needs_input_grad[:3]
        grads = _backward(grad, *ctx.saved_tensors, *wanted, *ctx.options)
        if not all(wanted):
            found = iter(grads)
            grads = [next(found) if one else None for one in wanted]
        return *grads, None, None, None

    def save_add(ctx, inputs, output):
        input, _, weight, _, _, ctx.weight_offset, _, *dropout = inputs
        _, hidden, statistics = output
        ctx.input_dtype = input.dtype
        ctx.p, seed_tensor, *ctx.numbers = dropout
        ctx.save_for_backward(hidden, statistics, weight, seed_tensor)
        if not any(ctx.needs_input_grad[:2]):
            ctx.mark_non_differentiable(hidden)

    def backward_add(ctx, grad, grad_hidden):
        hidden, statistics, weight, seed_tensor = ctx.saved_tensors
        needs_input, needs_residual, *needs_parameters = ctx.needs_input_grad[:4]
        # Without dropout the two summands have one gradient.
        shared = ctx.p == 0.0 and ctx.input_dtype == hidden.dtype
        wanted = (
            needs_input and not shared,
            *needs_parameters,
            needs_residual or (needs_input and shared),
        )
        if grad is None:  # only the sum was used
            grad = torch.zeros(hidden.shape, dtype=ctx.input_dtype, device=hidden.device)
        *first, last = wanted
        grads = iter(
            _backward(
                grad, hidden, statistics, weight, *first, ctx.weight_offset, grad_hidden, last,
                ctx.input_dtype, ctx.p, seed_tensor, *ctx.numbers,
            )  # fmt: skip
        )
        grad_input, *grad_parameters, grad_sum = (next(grads) if one else None for one in wanted)
        if shared:
            grad_input = grad_sum
        return grad_input, grad_sum, *grad_parameters, *(None,) * 7

    _backward = Op(f"{name}_backward", fake=fake_backward)
    Op(f"{name}_", fake=lambda *_: None)
    Op(f"add_{name}_", fake=lambda *_: None)
    return (
        Op(
            name,
            fake=fake,
            train=Op(f"{name}_train", fake=fake_train),
            save=save,
            backward=backward,
            autocast=autocast,
        ),
        Op(
            f"add_{name}",
            fake=fake_add,
            train=Op(f"add_{name}_train", fake=fake_add_train),
            save=save_add,
            backward=backward_add,
            autocast=autocast,
        ),
    )


def _to_fp32(device, *args):
    if device == "cuda":  # torch's autocast on CPU leaves layer_norm alone
        args = (
            a.to(torch.float32) if isinstance(a, Tensor) and a.is_floating_point() else a
            for a in args
        )
    return args


_rms_norm, _add_rms_norm = _register("rms_norm", 1)
_layer_norm, _add_layer_norm = _register("layer_norm", 2, _to_fp32)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    dropout_p: float = 0.0,
    weight_offset: float = 0.0,
    rounding: Rounding = "once",
) -> Tensor | tuple[Tensor, Tensor]:
    """`torch.nn.functional.rms_norm`: `input / sqrt(mean(input^2) + eps) * weight`.

    Args:
        input: (..., *normalized_shape), at most 8 dimensions, any strides; fp32, fp16 or bf16, on
            CPU or CUDA.
        normalized_shape: the last dimensions, over which the mean is taken.
        weight: of that shape, contiguous; any of the three dtypes.
        eps: positive. None: that of fp32, 1.19e-7, as in torch for all three dtypes.
        residual: like `input`, in its dtype or fp32. What is normalised then is
            `residual + dropout(input)`.
        dropout_p: the probability with which an element of `input` is dropped before the addition;
            see `ninefold.dropout`. Needs `residual`.
        weight_offset: added to the weight, without rounding: 1 for Gemma.
        rounding: "once", where the result is stored; or "llama": also before the weight is applied,
            as Hugging Face's Llama has it.

    Returns:
        A new contiguous tensor in the shape and dtype of `input`. With `residual`, a pair: that,
        and the sum, in the residual's dtype.

    Raises:
        TypeError: an argument of another type.
        NotImplementedError: another dtype, more than 8 dimensions, `eps` = 0, or `dropout_p`
            without `residual`.
        RuntimeError: shapes that do not match, tensors on several devices, CUDA tensors where there
            is no CUDA.
        ValueError: `dropout_p` out of 0 to 1, an unknown `rounding`.
    """
    if eps is None:
        eps = 1.1920928955078125e-07
    ops = _rms_norm, _add_rms_norm
    return _call(ops, input, normalized_shape, weight, None, eps,
                 residual, dropout_p, weight_offset, rounding)  # fmt: skip


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    *,
    residual: Tensor | None = None,
    dropout_p: float = 0.0,
    weight_offset: float = 0.0,
    rounding: Rounding = "once",
) -> Tensor | tuple[Tensor, Tensor]:
    """`torch.nn.functional.layer_norm`: `(input - mean) / sqrt(variance + eps) * weight + bias`.

    `bias` is like `weight`, and of its dtype. Under CUDA autocast everything is cast to fp32, as in
    torch. All else is as for `rms_norm`.
    """
    ops = _layer_norm, _add_layer_norm
    return _call(ops, input, normalized_shape, weight, bias, eps,
                 residual, dropout_p, weight_offset, rounding)  # fmt: skip


def _call(
    ops, input, normalized_shape, weight, bias, eps, residual, dropout_p, weight_offset, rounding
):
    if not isinstance(input, Tensor):
        raise TypeError(f"input must be a Tensor, not {type(input).__name__}")
    dims = len(normalized_shape)
    if dims == 0 or input.shape[-dims:] != tuple(normalized_shape):
        raise RuntimeError(
            f"Given normalized_shape={[*normalized_shape]}, expected input with shape "
            f"{['*', *normalized_shape]}, but got input of size{[*input.shape]}"
        )
    if dims > 1:
        shape = input.shape
        input, residual, weight, bias = (
            None if tensor is None else tensor.flatten(-dims)
            for tensor in (input, residual, weight, bias)
        )
        y = _call(ops, input, input.shape[-1:], weight, bias, eps,
                  residual, dropout_p, weight_offset, rounding)  # fmt: skip
        return y.view(shape) if residual is None else (y[0].view(shape), y[1].view(shape))

    plain, add = ops
    options = ()
    if weight_offset != 0.0 or rounding != "once":
        if rounding not in _ROUNDING:
            raise ValueError(f"rounding: expected one of {[*_ROUNDING]}, got {rounding!r}")
        options = weight_offset, _ROUNDING[rounding]
    if residual is None:
        if dropout_p != 0.0:
            raise NotImplementedError("dropout_p is not supported without residual")
        return plain(input, weight, bias, eps, *options)
    if dropout_p == 0.0:
        return add(input, residual, weight, bias, eps, *options)
    check_p(dropout_p)
    options = options or (0.0, 0)
    return add(input, residual, weight, bias, eps, *options, dropout_p, *draw(input))


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` by `ninefold.rms_norm`, whose `residual` its forward takes too."""

    def forward(self, input: Tensor, residual: Tensor | None = None):
        return rms_norm(input, self.normalized_shape, self.weight, self.eps, residual=residual)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` by `ninefold.layer_norm`, whose `residual` its forward takes too."""

    def forward(self, input: Tensor, residual: Tensor | None = None):
        return layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps, residual=residual
        )
