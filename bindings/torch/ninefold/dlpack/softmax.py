"""Softmax and log-softmax over the last dimension: include/ninefold/softmax.h."""

from __future__ import annotations

from typing import Any

from .call import Integer, Output, not_zero, output, run
from .view import Array


def softmax(
    x: Array,
    *,
    mask: Array | None = None,
    y: Output = True,
    dropped: Output = None,
    scale: float | None = None,
    causal: str = "none",
    log: bool = False,
    dropout_p: float = 0,
    dropout_seed: Integer = 0,
    dropout_offset: Integer = 0,
    rung: str | None = None,
    stream: int | None = None,
) -> Any:
    """softmax(scale * x + mask) over the last dimension, or its logarithm.

    x: (..., N), fp32, fp16 or bf16; any strides, 0 included.
    mask: broadcast to x's shape from the right. Boolean: true is allowed. fp32, or x's dtype:
        added; -inf is not allowed.
    y: out, like x; fp32 is possible too. May be the very view of x. None only with `dropped`.
    dropped: out, like y: y after dropout. May be the very view of x where y is not.
    scale: not 0. None is 1.
    causal: "none", "bottom_right" or "top_left"; rows are the last-but-one dimension.
    dropout_p: the share that is dropped, not with log; seed and offset as in `dropout`.
    rung: see ops/softmax/README.md. None: by N, dtype and layout.

    Masked positions give 0 (log: -inf) whatever x holds there, and so does a row with nothing
    allowed. Returns y, with `dropped` a pair of both, and `dropped` alone where y is None.
    """
    arguments = dict(locals())
    not_zero(scale=scale)
    arguments["y"] = output(y, x, stream)
    like = x if arguments["y"] is None else arguments["y"]
    arguments["dropped"] = output(dropped, like, stream)
    run("nf_softmax_forward", arguments, written=("y", "dropped"))
    made = [arguments[name] for name in ("y", "dropped") if arguments[name] is not None]
    return tuple(made) if len(made) > 1 else made[0]


def softmax_backward(
    y: Array,
    dy: Array,
    *,
    dx: Output = True,
    scale: float | None = None,
    causal: str = "none",
    log: bool = False,
    dropout_p: float = 0,
    dropout_seed: Integer = 0,
    dropout_offset: Integer = 0,
    rung: str | None = None,
    stream: int | None = None,
) -> Any:
    """The gradient of x, from what `softmax` returned and the gradient that arrives there.

    y, dy: (..., N) of one dtype. scale, causal, log: as in the forward; the mask is in y.
    dropout_p, seed and offset: those of the forward; dy then arrives at `dropped`.
    dx: out, like y; fp16 and bf16 are possible where y is fp32. May be the very view of y or dy.

    Returns dx, which is 0 where nothing was allowed.
    """
    arguments = dict(locals())
    not_zero(scale=scale)
    arguments["dx"] = output(dx, y, stream)
    run("nf_softmax_backward", arguments, written=("dx",))
    return arguments["dx"]
