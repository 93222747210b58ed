"""Rotary position embedding of queries and keys, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from .in_place import refuse_leaves
from .op import Op

Layout = Literal["bshd", "bhsd"]

# Hugging Face's names of the rules in the order of nf_rope_rule, and of the numbers in the order of
# nf_rope_scaling. Each rule with the numbers that it reads.
_NUMBERS = (
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
)
_RULES = {
    "default": (),
    "linear": _NUMBERS[:1],
    "llama3": _NUMBERS[:4],
    "yarn": (*_NUMBERS[:2], *_NUMBERS[4:]),
}


def _fake(q, k=None, *_):
    k_out = q.new_empty(0) if k is None else k.new_empty(k.shape)
    return q.new_empty(q.shape), k_out


def _save(ctx, inputs, output):
    if any(ctx.needs_input_grad[2:4]):
        raise NotImplementedError("the gradients of cos and sin are not supported: detach them")
    ctx.save_for_backward(*inputs[2:7])
    ctx.options = inputs[7:]


def _gradient(ctx, grad_q, grad_k):
    grads = [
        grad if needed else None for grad, needed in zip((grad_q, grad_k), ctx.needs_input_grad)
    ]
    options = *ctx.saved_tensors, *ctx.options
    if grads[0] is not None:
        grad_q, grad_k = _backward(*grads, *options)
        grads = grad_q, None if grads[1] is None else grad_k
    elif grads[1] is not None:
        grads[1], _ = _backward(grads[1], None, *options)
    return *grads, *(None for _ in options)


_backward = Op("rope_backward", fake=_fake)
_rope_ = Op("rope_", fake=lambda *args: None)
_rope = Op("rope", fake=_fake, save=_save, backward=_gradient)


class _InPlace(torch.autograd.Function):
    """One tensor turned where it is. Its values are not needed for the backward. One, because torch
    lets a function of its own write into one view only, as q and k in a packed QKV are two."""

    @staticmethod
    def forward(ctx, x, *options):
        _rope_(x, None, *options)
        ctx.mark_dirty(x)
        _save(ctx, (x, None, *options), None)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad, _ = _backward(grad, None, *ctx.saved_tensors, *ctx.options)
        return grad, *(None for _ in ctx.needs_input_grad[1:])


def _scaling(rule: Mapping[str, Any]) -> list[float]:
    name = rule.get("rope_type", rule.get("type", "default"))
    if name not in _RULES:
        raise NotImplementedError(f"scaling: rope_type {name!r} is not one of {', '.join(_RULES)}")
    reads = _RULES[name]
    for key in rule.keys() - {"rope_type", "type", "rope_theta", *reads}:
        if rule[key] is not None:
            raise NotImplementedError(f"scaling: {key} is not supported with rope_type {name!r}")
    numbers = [rule.get(key) if key in reads else None for key in _NUMBERS]
    if 0 in numbers:
        raise ValueError(f"scaling: {_NUMBERS[numbers.index(0)]} is 0")
    return [float(list(_RULES).index(name)), *(float(number or 0) for number in numbers)]


def _options(
    cos, sin, position_ids, offset, cu_seqlens, interleaved, rotary_dim, base, scaling, layout
) -> tuple:
    """The arguments of the operators after q and k."""
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout must be 'bshd' or 'bhsd', got {layout!r}")
    if cos is not None and rotary_dim is None:
        rotary_dim = 2 * cos.shape[-1]
    if scaling is not None and base is None:
        base = scaling.get("rope_theta")
    offsets, offset = (offset, 0) if isinstance(offset, Tensor) else (None, offset)
    return (
        cos,
        sin,
        position_ids,
        offsets,
        cu_seqlens,
        offset,
        layout == "bhsd",
        interleaved,
        rotary_dim,
        base,
        None if scaling is None else _scaling(scaling),
    )


def apply_rotary(
    q: Tensor,
    k: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    position_ids: Tensor | None = None,
    offset: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    base: float | None = None,
    scaling: Mapping[str, Any] | None = None,
    layout: Layout = "bshd",
) -> Tensor | tuple[Tensor, Tensor]:
    """q and k with the pairs in the first rotary_dim columns of each head turned by the angle of
    their position, and the other columns as they were (Su et al. 2021).

    q, k: (B, S, H, D), or (B, H, S, D) with layout "bhsd"; B may be left out. Each has its own
        number of heads. fp32, fp16 or bf16, both alike; any strides. fp32 arithmetic, rounded once.
    cos, sin: fp32 tables (positions, rotary_dim / 2), a row for each position. A position outside
        of them gives NaN. Without them the angles are computed, exactly also for far positions.
    position_ids: int32 or int64, (B, S), (1, S) or (S). Without it token s is at position s.
    offset: added to the position: a number for all, or int32 or int64 of (B), one for each row, or
        with cu_seqlens one for each sequence.
    cu_seqlens: int32 or int64 (sequences + 1): where each sequence of a packed batch begins, and
        the end; positions start again at each. B is 1 then.
    interleaved: False pairs column i with i + rotary_dim / 2 (Llama, NeoX), True 2 i with 2 i + 1
        (GPT-J). The wrong one gives wrong numbers that look right.
    rotary_dim: even. None is all of D, or what the tables have.
    base: None is 10000. Not with tables.
    scaling: the rule for longer texts as a Hugging Face config has it, for example {"rope_type":
        "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}. "linear", "llama3" and
        "yarn" are known; its rope_theta is the base where none is given. Not with tables.

    Returns fresh contiguous tensors: q's alone, or q's and k's. The gradients are turned back, and
    there are none of cos and sin. Raises NotImplementedError for other dtypes and rules, ValueError for
    an unknown layout, RuntimeError for shapes, dtypes, devices or options that do not fit each
    other.
    """
    q_out, k_out = _rope(
        q,
        k,
        *_options(
            cos,
            sin,
            position_ids,
            offset,
            cu_seqlens,
            interleaved,
            rotary_dim,
            base,
            scaling,
            layout,
        ),
    )
    return q_out if k is None else (q_out, k_out)


def apply_rotary_(
    q: Tensor,
    k: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    position_ids: Tensor | None = None,
    offset: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    base: float | None = None,
    scaling: Mapping[str, Any] | None = None,
    layout: Layout = "bshd",
) -> Tensor | tuple[Tensor, Tensor]:
    """`apply_rotary` laid over q and k, which are returned. They may be views of one packed tensor.
    Gradients flow as through torch's own in-place functions, and leaves that require one are
    refused with RuntimeError. Raises that also where q and k overlap, or one overlaps itself.
    """
    options = _options(
        cos, sin, position_ids, offset, cu_seqlens, interleaved, rotary_dim, base, scaling, layout
    )
    tensors = (q,) if k is None else (q, k)
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        _rope_(q, k, *options)
    elif torch.compiler.is_compiling():  # which loses what a function marks as dirty
        for x, turned in zip(tensors, _rope(q, k, *options)):
            x.copy_(turned)
    else:
        refuse_leaves(*tensors)
        for x in tensors:
            _InPlace.apply(x, *options)
    return q if k is None else (q, k)


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """The function of that name in Hugging Face's models with the half layout (Llama, Qwen, ...).

    q, k: (B, H, S, D) with unsqueeze_dim 1, (B, S, H, D) with 2; see `apply_rotary`.
    cos, sin: (B, S, rotary_dim) or (1, S, rotary_dim), a row for each token, whose second half
        repeats the first and is not read. fp32 is best: other dtypes, as the models make them, are
        widened at each call, and their rounding is in the result.

    Returns fresh contiguous tensors like q and k. Raises NotImplementedError for another
    unsqueeze_dim; all else as in `apply_rotary`.
    """
    if unsqueeze_dim not in (1, 2):
        raise NotImplementedError(f"unsqueeze_dim must be 1 or 2, got {unsqueeze_dim}")
    rows, tokens, width = cos.shape
    if tokens != q.shape[-1 - unsqueeze_dim]:
        raise RuntimeError(f"cos has {tokens} tokens, q has the shape {tuple(q.shape)}")
    cos, sin, offsets = cos.float(), sin.float(), None
    if rows > 1:  # row b of the batch has its own stretch of the tables
        cos, sin = cos.flatten(0, 1), sin.flatten(0, 1)
        offsets = torch.arange(0, rows * tokens, tokens, device=cos.device)
    return _rope(q, k, cos, sin, None, offsets, None, 0, unsqueeze_dim == 1, False, width)
