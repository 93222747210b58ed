"""How far outputs are from their float64 reference, and how far they may be."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from .core import Error

_CHUNK = 1 << 26  # elements that are widened to float64 at a time

# One element may be off by this many eps of its dtype, relative to itself and to the root mean
# square of the output; the whole by half as many, in the L2 norm. With 16 bits that is two
# roundings. fp32 leaves room for sums of long rows, in any order. Below the normal numbers a
# rounding is off by up to half the least step, however small the number.
_ROUNDINGS = {torch.float32: 64.0, torch.float16: 1.0, torch.bfloat16: 1.0}


def judge(
    results: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    slack: Mapping[str, Tensor] = MappingProxyType({}),
) -> Error:
    """The worst of all outputs. KeyError where one is missing, ValueError for a wrong shape.

    slack: by output, how far each element may be off beyond that, for what it was computed from had
    been rounded as the op says.
    """
    errors = [
        compare(results[name], right, slack.get(name)) for name, right in expected.items()
    ]
    return Error(*(max(values) for values in zip(*errors, strict=True)))


def compare(out: Tensor, expected: Tensor, slack: Tensor | None = None) -> Error:
    """One output, in its own dtype, against float64. NaN or an infinity on one side alone is an
    infinite error."""
    if out.shape != expected.shape:
        raise ValueError(f"an output has shape {tuple(out.shape)}, not {tuple(expected.shape)}")
    roundings = _ROUNDINGS[out.dtype]
    limits = torch.finfo(out.dtype)
    out, expected = out.detach().reshape(-1), expected.reshape(-1)
    slack = expected.new_zeros(()).expand(expected.shape) if slack is None else slack.reshape(-1)
    magnitude = _mean(expected.nan_to_num(0, 0, 0).square()) ** 0.5
    smallest = limits.smallest_normal * limits.eps  # the least step between two numbers
    difference = size = worst = 0.0
    flushed = nonzero = 0
    for start in range(0, out.numel(), _CHUNK):
        mine = out[start : start + _CHUNK].double()
        right = expected[start : start + _CHUNK]
        more = slack[start : start + _CHUNK]
        if not right.isfinite().all():
            special = ~right.isfinite()
            if not torch.equal(mine[special], right[special]):
                return Error(float("inf"), float("inf"), 0.0)
            mine, right, more = mine[~special], right[~special], more[~special]
        if not mine.isfinite().all():
            return Error(float("inf"), float("inf"), 0.0)
        off = (mine - right).abs_()
        difference += off.square().sum().item()
        size += right.square().sum().item()
        flushed += int(((mine == 0) & (right != 0)).sum())
        nonzero += int((right != 0).sum())
        if off.numel():
            allowed = right.abs().add_(magnitude).mul_(roundings * limits.eps)
            allowed.add_(smallest).add_(more)
            worst = max(worst, off.div_(allowed).max().item())
    allowed_l2 = (roundings * limits.eps * size**0.5 + smallest * out.numel() ** 0.5) / 2
    allowed_l2 += slack.norm().item()
    return Error(
        (difference / size) ** 0.5 if size else difference**0.5,
        max(worst, difference**0.5 / allowed_l2) if allowed_l2 else worst,
        flushed / nonzero if nonzero else 0.0,
    )


def _mean(values: Tensor) -> float:
    return values.mean().item() if values.numel() else 0.0
