"""Dropout with the residual addition that follows it: include/ninefold/dropout.h."""

from __future__ import annotations

from typing import Any

from .call import Integer, Output, output, run
from .view import Array


def dropout(
    x: Array,
    *,
    p: float,
    seed: Integer = 0,
    offset: Integer = 0,
    residual: Array | None = None,
    y: Output = True,
    rung: str | None = None,
    stream: int | None = None,
) -> Any:
    """residual + dropout(x): x / (1 - p) where it is kept, 0 where it is dropped.

    x, residual: alike, fp32, fp16 or bf16; any strides, 0 included.
    p: in [0, 1]. seed, offset: all 64 bits count; which elements are dropped is a function of these
        and the element's index alone. Use another offset for each call of a step.
    y: out, like x. May be the very view of x or of residual.
    rung: "scalar", "stream" (CPU) or "vector16" (CUDA). None: by layout.

    Returns y.
    """
    arguments = dict(locals())
    arguments["y"] = output(y, x, stream)
    run("nf_dropout_forward", arguments, written=("y",))
    return arguments["y"]


def dropout_backward(
    dy: Array,
    *,
    p: float,
    seed: Integer = 0,
    offset: Integer = 0,
    dx: Output = True,
    rung: str | None = None,
    stream: int | None = None,
) -> Any:
    """The gradient of x, by the mask that the same p, seed and offset gave the forward.

    dy: any strides. dx: out, like dy; may be the very view of dy. The gradient of the residual is
    dy itself. Returns dx.
    """
    arguments = dict(locals())
    arguments["dx"] = output(dx, dy, stream)
    run("nf_dropout_backward", arguments, written=("dx",))
    return arguments["dx"]
