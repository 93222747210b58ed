"""RMSNorm and LayerNorm with dropout and residual before them: include/ninefold/norm.h."""

from __future__ import annotations

from typing import Any, NamedTuple

from .call import Integer, Output, not_zero, output, refuse_new, run
from .view import Array


class Norm(NamedTuple):
    """The outputs of a forward; None for those that were not asked for."""

    y: Any  # (..., N)
    residual_out: Any  # (..., N): residual + dropout(x), of the residual's dtype
    mean: Any  # fp32, (...) without N. RMSNorm has none
    rstd: Any  # fp32, (...) without N


class NormGradients(NamedTuple):
    """The outputs of a backward; None for those that were not asked for."""

    dx: Any  # (..., N)
    d_residual: Any  # (..., N): equal to dx without dropout
    dweight: Any  # (N)
    dbias: Any  # (N)


def rms_norm(
    x: Array,
    weight: Array | None = None,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    y: Output = True,
    residual_out: Output = None,
    rstd: Output = None,
    eps: float | None = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
    dropout_p: float = 0.0,
    dropout_seed: Integer = 0,
    dropout_offset: Integer = 0,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> Norm:
    """h / sqrt(mean(h^2) + eps) * (weight_offset + weight) + bias, h = residual + dropout(x).

    x, residual: (..., N), fp32, fp16 or bf16; any strides. weight, bias: (N), contiguous, of one
        dtype, any of the three.
    y: out, like x; a 16-bit y is possible for an fp32 x. May be the very view of x or residual.
    residual_out: out: h, which the backward needs where a residual or dropout came before; made
        like the residual, or like x without one. May be the very view of x or residual.
    rstd: out: the backward needs it.
    eps: not 0. None is 1e-5. weight_offset: 1 for Gemma. rounding: "once", or "llama" where xhat is
        rounded to y's dtype before it meets the weight.
    dropout_p: in [0, 1]; seed and offset as `dropout` has them.
    workspace: the forward needs none. rung: see ops/norm/README.md.
    """
    return _forward("nf_rms_norm_forward", dict(locals()))


def layer_norm(
    x: Array,
    weight: Array | None = None,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    y: Output = True,
    residual_out: Output = None,
    mean: Output = None,
    rstd: Output = None,
    eps: float | None = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
    dropout_p: float = 0.0,
    dropout_seed: Integer = 0,
    dropout_offset: Integer = 0,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> Norm:
    """(h - mean(h)) / sqrt(var(h) + eps) * (weight_offset + weight) + bias.

    The arguments are those of `rms_norm`. mean: out, like rstd; the backward needs both.
    """
    return _forward("nf_layer_norm_forward", dict(locals()))


def rms_norm_backward(
    dy: Array,
    x: Array | None = None,
    weight: Array | None = None,
    *,
    rstd: Array,
    bias: Array | None = None,
    residual_out: Array | None = None,
    d_residual_out: Array | None = None,
    dx: Output = True,
    d_residual: Output = None,
    dweight: Output = None,
    dbias: Output = None,
    eps: float | None = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
    dropout_p: float = 0.0,
    dropout_seed: Integer = 0,
    dropout_offset: Integer = 0,
    accumulate: bool = False,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> NormGradients:
    """The gradients that are asked for, from dy, which arrives at y.

    x, residual_out: h is residual_out where that is given, and x where it is not.
    d_residual_out: the gradient that arrives at h from elsewhere. None is 0.
    dx: out, made like dy. May be the very view of dy, of d_residual_out or of h.
    d_residual: out, made like d_residual_out, or h without one; the same views are possible.
    dweight, dbias: out, (N), contiguous, fp32 or the weight's dtype, made like the weight (or the
        bias, without a weight). accumulate: they are added to what the arrays hold.
    workspace: uint8, or None: made where dweight and dbias need it.
    The rest is as it was in the forward.
    """
    return _backward("nf_rms_norm_backward", dict(locals()))


def layer_norm_backward(
    dy: Array,
    x: Array | None = None,
    weight: Array | None = None,
    *,
    mean: Array,
    rstd: Array,
    bias: Array | None = None,
    residual_out: Array | None = None,
    d_residual_out: Array | None = None,
    dx: Output = True,
    d_residual: Output = None,
    dweight: Output = None,
    dbias: Output = None,
    eps: float | None = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
    dropout_p: float = 0.0,
    dropout_seed: Integer = 0,
    dropout_offset: Integer = 0,
    accumulate: bool = False,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> NormGradients:
    """The gradients that are asked for. The arguments are those of `rms_norm_backward`, and mean,
    which the forward gave."""
    return _backward("nf_layer_norm_backward", dict(locals()))


def _forward(function: str, arguments: dict[str, Any]) -> Norm:
    not_zero(eps=arguments["eps"])
    x, residual, stream = arguments["x"], arguments["residual"], arguments["stream"]
    per_row: dict[str, Any] = {"shape": lambda shape: shape[:-1], "dtype": "float32"}
    outputs = Norm(
        y=output(arguments["y"], x, stream),
        residual_out=output(arguments["residual_out"], x if residual is None else residual, stream),
        mean=output(arguments.get("mean"), x, stream, **per_row),
        rstd=output(arguments["rstd"], x, stream, **per_row),
    )
    run(function, {**arguments, **outputs._asdict()}, written=outputs._fields)
    return outputs


def _backward(function: str, arguments: dict[str, Any]) -> NormGradients:
    not_zero(eps=arguments["eps"])
    dweight, dbias, stream = arguments["dweight"], arguments["dbias"], arguments["stream"]
    refuse_new(arguments["accumulate"], dweight=dweight, dbias=dbias)
    dy, stream_gradient = arguments["dy"], arguments["d_residual_out"]
    h = _first(arguments["residual_out"], arguments["x"])
    parameter = _first(arguments["weight"], arguments["bias"])
    outputs = NormGradients(
        dx=output(arguments["dx"], dy, stream),
        d_residual=output(arguments["d_residual"], _first(stream_gradient, h), stream),
        dweight=output(dweight, parameter, stream),
        dbias=output(dbias, parameter, stream),
    )
    run(function, {**arguments, **outputs._asdict()}, written=outputs._fields)
    return outputs


def _first(one: Any, other: Any) -> Any:
    return other if one is None else one
