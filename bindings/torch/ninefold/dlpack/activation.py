"""Activation functions, with a bias before them or gating: include/ninefold/activation.h."""

from __future__ import annotations

from typing import Any, NamedTuple

from .call import Output, Shape, not_zero, output, refuse_new, run
from .view import Array


class ActivationGradients(NamedTuple):
    """dx like x, dup like up, dbias (N); None for those that were not asked for."""

    dx: Any
    dup: Any
    dbias: Any


def activation(
    x: Array,
    *,
    kind: str,
    gating: str = "ungated",
    up: Array | None = None,
    bias: Array | None = None,
    y: Output = True,
    alpha: float | None = None,
    limit: float | None = None,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> Any:
    """act(x + bias), or act(gate) * up.

    kind: "gelu_tanh", "gelu_erf", "silu", "relu", "relu2" or, gated only, "swiglu_clamp".
    gating: "ungated"; "two_tensors", where x is the gate and up the other, both (..., N);
        "concatenated" or "interleaved", where x is (..., 2 N) and has both: [g0 g1 ... u0 u1 ...]
        or [g0 u0 g1 u1 ...].
    x, up, bias: fp32, fp16 or bf16, of one dtype; any strides, 0 included. bias: (N), ungated only.
    y: out, (..., N). May be the very view of an x or up of its shape.
    alpha, limit: of "swiglu_clamp", positive. None is 1.702 and 7.
    workspace: the forward needs none.
    rung: "scalar", "stream" (CPU) or "vector16" (CUDA). None: by layout.

    Returns y.
    """
    arguments = dict(locals())
    not_zero(alpha=alpha, limit=limit)
    halves = gating in ("concatenated", "interleaved")
    arguments["y"] = output(y, x, stream, shape=_half if halves else None)
    run("nf_activation_forward", arguments, written=("y",))
    return arguments["y"]


def activation_backward(
    x: Array,
    dy: Array,
    *,
    kind: str,
    gating: str = "ungated",
    up: Array | None = None,
    bias: Array | None = None,
    dx: Output = True,
    dup: Output = True,
    dbias: Output = None,
    alpha: float | None = None,
    limit: float | None = None,
    accumulate: bool = False,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> ActivationGradients:
    """The gradients, from the inputs of the forward and the gradient dy that arrives at y.

    dx: out, like x. May be the very view of x, or of a dy of its shape.
    dup: out, like up. May be the very view of up or dy. Without an up there is no dup.
    dbias: out, (N), contiguous, of x's dtype, or fp32: the sum of dx over the rows, before
        rounding. accumulate: it is added to what dbias holds.
    workspace: uint8, or None: made where dbias needs it.
    """
    arguments = dict(locals())
    not_zero(alpha=alpha, limit=limit)
    refuse_new(accumulate, dbias=dbias)
    if up is None and dup is True:
        dup = None
    gradients = ActivationGradients(
        dx=output(dx, x, stream),
        dup=output(dup, up, stream),
        dbias=output(dbias, x, stream, shape=lambda shape: shape[-1:]),
    )
    arguments.update(gradients._asdict())
    run("nf_activation_backward", arguments, written=gradients._fields)
    return gradients


def _half(shape: Shape) -> Shape:
    return (*shape[:-1], *(columns // 2 for columns in shape[-1:]))
