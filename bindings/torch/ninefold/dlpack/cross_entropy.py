"""Cross-entropy of logits against class indices: include/ninefold/cross_entropy.h."""

from __future__ import annotations

from typing import Any, NamedTuple

from .call import Number, Output, not_zero, output, run
from .view import Array


class CrossEntropy(NamedTuple):
    """The outputs of a call; None for those that were not asked for."""

    loss: Any = None  # fp32, one element (rank 0 where it is made): the total
    z_loss_sum: Any = None  # fp32, one element: the part of the loss that is z-loss
    accuracy: Any = None  # fp32, one element: of the counted tokens, the share with argmax = target
    lse: Any = None  # fp32 per token: the log of the sum of exponentials
    token_loss: Any = None  # fp32 per token, before token_weights and denominator
    argmax: Any = None  # int64 per token: the lowest index of the largest logit; -1 for ignored
    entropy: Any = None  # fp32 per token, in nats
    dlogits: Any = None  # like logits: the gradient
    row_scale: Any = None  # fp32 per token: what defer_scale left to be multiplied with


def cross_entropy(
    logits: Array,
    targets: Array,
    *,
    class_weights: Array | None = None,
    token_weights: Array | None = None,
    denominator: Number | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    soft_cap: float = 0.0,
    scale: float | None = None,
    loss: Output = True,
    z_loss_sum: Output = None,
    accuracy: Output = None,
    lse: Output = None,
    token_loss: Output = None,
    argmax: Output = None,
    entropy: Output = None,
    bad_target: Array | None = None,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> CrossEntropy:
    """The loss over the last dimension of the logits, and what else is asked for.

    logits: (..., V), fp32, fp16 or bf16; any strides. "Per token" is this shape without V.
    targets: int32 or int64 per token. class_weights: fp32 (V), contiguous. token_weights: fp32 per
        token.
    denominator: divides the sum of "mean"; not 0 if it is a number. None: the sum of the class
        weights of the counted tokens.
    reduction: "mean", "sum" or "none". ignore_index: None is -100. label_smoothing: in [0, 1].
    z_loss: the weight of lse^2. soft_cap: 0 is none. scale: positive. None is 1.
    loss ... entropy: out, see CrossEntropy. With "none" there is no loss, and True for it makes
        token_loss.
    bad_target: int32, one element: becomes 1 where a target is out of range, and is left alone
        otherwise. Such a target makes its row NaN.
    workspace: uint8, or None: made where it is needed.
    rung: see ops/cross_entropy/README.md. None: by V, dtype and layout.

    Ignored tokens take part in nothing. No token at all gives a loss of 0, where PyTorch has NaN.
    """
    return _outputs("nf_cross_entropy_forward", dict(locals()))


def cross_entropy_backward(
    logits: Array,
    targets: Array,
    lse: Array,
    *,
    class_weights: Array | None = None,
    token_weights: Array | None = None,
    denominator: Number | None = None,
    loss_scale: Number | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    soft_cap: float = 0.0,
    scale: float | None = None,
    defer_scale: bool = False,
    dlogits: Output = True,
    row_scale: Output = True,
    bad_target: Array | None = None,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> CrossEntropy:
    """dlogits, and row_scale with defer_scale, from the logits and the lse of the forward, whose
    other arguments are given again.

    token_weights: for "none" the gradient that arrives, times the weights of the forward.
    loss_scale: multiplies the gradient before it is rounded; not 0 if it is a number. None is 1.
    defer_scale: dlogits is the gradient of each token's own loss, and row_scale what it is yet to
        be multiplied with: for 16 bits, which hold the former without loss. Without defer_scale
        there is no row_scale.
    dlogits: out, like logits. May be their very view.
    """
    return _outputs("nf_cross_entropy_backward", dict(locals()))


def cross_entropy_forward_backward(
    logits: Array,
    targets: Array,
    *,
    class_weights: Array | None = None,
    token_weights: Array | None = None,
    denominator: Number | None = None,
    loss_scale: Number | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    soft_cap: float = 0.0,
    scale: float | None = None,
    defer_scale: bool = False,
    loss: Output = True,
    z_loss_sum: Output = None,
    accuracy: Output = None,
    lse: Output = None,
    token_loss: Output = None,
    argmax: Output = None,
    entropy: Output = None,
    dlogits: Output = True,
    row_scale: Output = True,
    bad_target: Array | None = None,
    workspace: Array | None = None,
    rung: str | None = None,
    stream: int | None = None,
) -> CrossEntropy:
    """The loss and its gradient in one pass, which reads each logit once.

    The arguments are those of `cross_entropy` and of `cross_entropy_backward`. dlogits is the
    gradient of loss_scale * loss; it may be the very view of logits, so that nothing of their size
    is added.
    """
    return _outputs("nf_cross_entropy_forward_backward", dict(locals()))


_ONE: dict[str, Any] = {"shape": lambda shape: (), "dtype": "float32"}
_PER_TOKEN: dict[str, Any] = {"shape": lambda shape: shape[:-1], "dtype": "float32"}
_MADE: dict[str, dict[str, Any]] = {
    "loss": _ONE,
    "z_loss_sum": _ONE,
    "accuracy": _ONE,
    "argmax": {**_PER_TOKEN, "dtype": "int64"},
    "dlogits": {},
}


def _outputs(function: str, arguments: dict[str, Any]) -> CrossEntropy:
    not_zero(**{name: arguments.get(name) for name in ("scale", "denominator", "loss_scale")})
    logits, stream = arguments["logits"], arguments["stream"]
    written = [name for name in CrossEntropy._fields if name in arguments]
    if function == "nf_cross_entropy_backward":
        written.remove("lse")
    elif arguments["reduction"] == "none" and arguments["loss"] is True:
        arguments["loss"] = None
        if arguments["token_loss"] is None:
            arguments["token_loss"] = True
    if arguments.get("row_scale") is True and not arguments["defer_scale"]:
        arguments["row_scale"] = None
    for name in written:
        arguments[name] = output(arguments[name], logits, stream, **_MADE.get(name, _PER_TOKEN))
    run(function, arguments, written=(*written, "bad_target"))
    return CrossEntropy(**{name: arguments[name] for name in written})
