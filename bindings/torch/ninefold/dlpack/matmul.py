"""Matrix products with what follows them fused in: include/ninefold/matmul.h."""

from __future__ import annotations

from typing import Any, NamedTuple

from .call import Number, Output, Shape, output, refuse_new, run
from .view import Array


class Matmul(NamedTuple):
    """The outputs; None for those that were not asked for."""

    d: Any  # (M, H), H = N, or N / 2 with swiglu
    preactivation: Any  # (M, N), of d's dtype
    row_sums: Any  # (M)
    column_sums: Any  # (H)


def matmul(
    a: Array,
    b: Array,
    *,
    c: Array | None = None,
    d: Output = True,
    alpha: Number | None = None,
    beta: Number | None = None,
    epilogue: str = "linear",
    bias: Array | None = None,
    bias_by_row: bool = False,
    residual: Array | None = None,
    saved: Array | None = None,
    preactivation: Output = None,
    row_sums: Output = None,
    column_sums: Output = None,
    accumulate: bool = False,
    tf32: bool = False,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> Matmul:
    """h + residual, of z = alpha a b + beta c + bias.

    a, b: (M, K) and (K, N), or with one batch dimension before them, as all but the bias and the
        sums; fp32, fp16 or bf16, of one dtype. Any strides: a transposed operand is a view.
    c: (M, N), of d's dtype. alpha, beta: numbers, or one fp32 element that the work reads when it
        runs. None, and a number 0, is 1.
    epilogue: h is z for "linear", its GELU for "gelu_tanh" and "gelu_erf"; z times the slope of
        GELU at `saved` for "gelu_tanh_backward" and "gelu_erf_backward"; silu(gate) * up for
        "swiglu_concatenated" and "swiglu_interleaved".
    bias: (N), or (M) with bias_by_row. residual: (M, H). saved: (M, N), what a forward gave as
        `preactivation`; both of d's dtype.
    d: out, of a's dtype, or fp32. May be the very view of c, residual or saved: with d=c products
        add up.
    preactivation: out: z, of d's dtype. Not with "linear" or a backward.
    row_sums, column_sums: out, contiguous, of a's dtype, or fp32: the sums of h before rounding.
        accumulate: they are added to what is there.
    tf32: fp32 operands may be rounded for the tensor cores.
    workspace: uint8, or None: made where it is needed. rung: see ops/matmul/README.md.
    """
    arguments = dict(locals())
    refuse_new(accumulate, row_sums=row_sums, column_sums=column_sums)
    columns = b.shape[-1]
    h = columns // 2 if epilogue.startswith("swiglu") else columns

    def of(count: int) -> Any:
        def shape(of_a: Shape) -> Shape:
            return (*of_a[:-1], count)

        return shape

    made = output(d, a, stream, shape=of(h))
    outputs = Matmul(
        d=made,
        preactivation=output(preactivation, made, stream, shape=of(columns)),
        row_sums=output(row_sums, a, stream, shape=lambda shape: shape[-2:-1]),
        column_sums=output(column_sums, a, stream, shape=lambda _: (h,)),
    )
    arguments.update(outputs._asdict())
    run("nf_matmul_forward", arguments, written=outputs._fields)
    return outputs
