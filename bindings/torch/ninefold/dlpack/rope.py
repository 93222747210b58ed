"""Rotary position embedding of queries and keys: include/ninefold/rope.h."""

from __future__ import annotations

from typing import Any, NamedTuple

from .call import Output, not_zero, output, run
from .view import Array


class Rope(NamedTuple):
    """q_out like q, and k_out like k or None."""

    q_out: Any
    k_out: Any


class RopeScaling(NamedTuple):
    """How a model trained on short texts reads longer ones: nf_rope_scaling, whose defaults stand
    where None is. rule: "linear", "llama3" or "yarn"."""

    rule: str
    factor: float
    original_length: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None


def rope(
    q: Array,
    k: Array | None = None,
    *,
    q_out: Output = True,
    k_out: Output = True,
    positions: Array | None = None,
    offsets: Array | None = None,
    cu_seqlens: Array | None = None,
    offset: int = 0,
    layout: str = "half",
    rotary_dim: int | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
    base: float | None = None,
    scaling: RopeScaling | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> Rope:
    """q and k, each pair of their first rotary_dim columns turned by its position's angle.

    q, k: (B, S, H, D) with heads of their own number, fp32, fp16 or bf16; any strides, so
        [B, H, S, D] is q.transpose(0, 2, 1, 3).
    q_out, k_out: out, like q and k. May be their very views. Without a k there is no k_out.
    positions: int32 or int64 (B, S). offsets: (B), or one for each sequence of cu_seqlens.
        cu_seqlens: (sequences + 1), where each begins, and the end. offset: added to all.
    layout: "half", pairs (i, i + rotary_dim / 2) as Llama has them, or "interleaved", pairs
        (2 i, 2 i + 1).
    rotary_dim: even. None is D.
    cos, sin: fp32 (positions, rotary_dim / 2), both or neither; without base and scaling.
    base: None is 10000.
    rung: see ops/rope/README.md. None: by layout.
    """
    return _turned("nf_rope_forward", dict(locals()))


def rope_backward(
    q: Array,
    k: Array | None = None,
    *,
    q_out: Output = True,
    k_out: Output = True,
    positions: Array | None = None,
    offsets: Array | None = None,
    cu_seqlens: Array | None = None,
    offset: int = 0,
    layout: str = "half",
    rotary_dim: int | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
    base: float | None = None,
    scaling: RopeScaling | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> Rope:
    """The gradients of q and k, q_out and k_out here, from those that arrive at the forward's
    results, q and k here; the other arguments are as they were there."""
    return _turned("nf_rope_backward", dict(locals()))


def _turned(function: str, arguments: dict) -> Rope:
    q, k, stream = arguments["q"], arguments["k"], arguments["stream"]
    not_zero(rotary_dim=arguments["rotary_dim"], base=arguments["base"])
    if arguments["scaling"]:
        not_zero(**arguments["scaling"]._asdict())
    if k is None and arguments["k_out"] is True:
        arguments["k_out"] = None
    outputs = Rope(
        q_out=output(arguments["q_out"], q, stream),
        k_out=output(arguments["k_out"], k, stream),
    )
    arguments.update(outputs._asdict())
    run(function, arguments, written=outputs._fields)
    return outputs
