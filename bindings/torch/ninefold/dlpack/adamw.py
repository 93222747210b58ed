"""One step of AdamW over a list of parameters: include/ninefold/adamw.h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .call import Integer, Number, Output, not_zero, output, run
from .view import Array


class AdamwTensor(NamedTuple):
    """One parameter: contiguous arrays of one shape, none of whose memory another one shares.

    param: fp32; or bf16 or fp16 with an fp32 master, or bf16 without one by stochastic rounding.
    grad: fp32, bf16 or fp16. m, v: fp32 or bf16; zero before the first step.
    lr_scale: multiplies lr; not 0. None is 1.
    """

    param: Array
    grad: Array
    m: Array
    v: Array
    master: Array | None = None
    weight_decay: float = 0.0
    lr_scale: float | None = None


def adamw_step(
    tensors: Sequence[AdamwTensor],
    *,
    lr: Number,
    beta1: float | None = None,
    beta2: float | None = None,
    eps: float | None = None,
    step: Integer = 0,
    grad_scale: Number | None = None,
    found_inf: Array | None = None,
    max_grad_norm: float = 0.0,
    grad_norm: Output = None,
    stochastic_rounding: bool = False,
    seed: Integer = 0,
    offset: Integer = 0,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> Any:
    """Updates param, m, v and master of each tensor in place, as torch.optim.AdamW does.

    beta1, beta2, eps: not 0. None is 0.9, 0.999 and 1e-8.
    step: how many steps came before, so 0 is the first. An array (int64, one element) is counted
        up by the call, unless the step is skipped.
    grad_scale: multiplies the gradients; not 0 if it is a number. None is 1.
    found_inf: fp32, one element; where it is not 0 the step is skipped.
    max_grad_norm: clips the gradients of the list together; 0 does not. A norm that is not finite
        skips the step.
    grad_norm: out, fp32, one element: the norm before clipping; made with rank 0.
    stochastic_rounding, seed, offset: for bf16 parameters without a master. Another offset for each
        step: the array `step` will do.
    workspace: uint8, or None: made where it is needed.

    Returns grad_norm, or None.
    """
    arguments = dict(locals())
    not_zero(beta1=beta1, beta2=beta2, eps=eps, grad_scale=grad_scale)
    for tensor in tensors:
        not_zero(lr_scale=tensor.lr_scale)
    first = tensors[0].param if tensors else None
    norm = output(grad_norm, first, stream, shape=lambda shape: (), dtype="float32")
    arguments.update(count=len(tensors), grad_norm=norm)
    written = ("param", "m", "v", "master", "step", "grad_norm")
    run("nf_adamw_step", arguments, written=written)
    return norm
