"""Cross-entropy of logits against class indices; the gradient may take the place of the logits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import _reduction

from .in_place import refuse_leaves
from .op import Op

Reduction = Literal["mean", "sum", "none"]


def _save(ctx, inputs, outputs):
    input, target, weight, *settings, denominator, inplace_backward, _ = inputs
    _only_input_has_a_gradient(ctx)
    ctx.save_for_backward(input, target, weight, outputs[1], denominator)
    ctx.settings, ctx.inplace_backward = settings, inplace_backward


def _gradient(ctx, grad):
    input, target, weight, lse, denominator = ctx.saved_tensors
    args = target, weight, lse, *ctx.settings, denominator
    if ctx.inplace_backward:
        grad_input = _taken_over(input)
        _backward_(grad, grad_input, *args)
    else:
        grad_input = _backward(grad, input, *args)
    return grad_input, *[None] * 11


def _save_known(ctx, inputs, outputs):
    _only_input_has_a_gradient(ctx)
    ctx.mark_non_differentiable(outputs[1])
    ctx.save_for_backward(outputs[1], inputs[2])


def _known_gradient(ctx, grad, *_):
    grad_input, loss_scale = ctx.saved_tensors
    expected = 1 if loss_scale is None else loss_scale.to(grad.dtype)
    torch._assert_async(
        (grad == expected).reshape(()),
        "cross_entropy: the gradient that arrived for the loss is not the given loss_scale",
    )
    return _taken_over(grad_input), *[None] * 11


def _only_input_has_a_gradient(ctx):
    if any(ctx.needs_input_grad[1:]):
        raise RuntimeError("cross_entropy: there is no gradient but that of input")


def _taken_over(tensor: Tensor) -> Tensor:
    """A saved tensor that becomes the gradient itself, which has no history."""
    if torch.is_grad_enabled():
        raise RuntimeError("cross_entropy: double backward is not supported")
    return tensor.detach()


def _fake_loss(input, target, reduction, dtype):
    torch._check(
        target.shape == input.shape[: input.ndim > 1] + input.shape[2:],
        lambda: "cross_entropy: target: expected the shape of input without its classes",
    )
    shape = target.shape if reduction == 0 else ()
    return torch.empty(shape, dtype=dtype or input.dtype, device=input.device)


def _fake(input, target, weight=None, reduction=1, *settings):
    return _fake_loss(input, target, reduction, settings[7] if len(settings) == 8 else None)


def _fake_train(input, target, *args):
    lse = torch.empty(target.shape, dtype=torch.float32, device=input.device)
    return _fake(input, target, *args), lse


def _fake_known(input, target, loss_scale=None, weight=None, reduction=1, *settings):
    return _fake_loss(input, target, reduction, settings[6] if len(settings) == 7 else None)


def _fake_gradient(input):
    return torch.empty(input.shape, dtype=input.dtype, device=input.device)


def _autocast(device, *args):
    return *args[:-1], args[-1] or torch.float32


_backward = Op("cross_entropy_backward", fake=lambda grad, input, *_: _fake_gradient(input))
_backward_ = Op("cross_entropy_backward_", fake=lambda *_: None)
_forward = Op(
    "cross_entropy",
    fake=_fake,
    train=Op("cross_entropy_train", fake=_fake_train),
    save=_save,
    backward=_gradient,
    autocast=_autocast,
)
_forward_backward = Op(
    "cross_entropy_forward_backward",
    fake=lambda *args: (_fake_known(*args), _fake_gradient(args[0])),
    save=_save_known,
    backward=_known_gradient,
    autocast=_autocast,
)
_forward_backward_ = Op("cross_entropy_forward_backward_", fake=_fake_known, autocast=_autocast)


class _OverLogits(torch.autograd.Function):
    """The one pass whose gradient stands where the logits were."""

    @staticmethod
    def forward(ctx, input, *args):
        _only_input_has_a_gradient(ctx)
        loss = _forward_backward_(input, *args)
        ctx.save_for_backward(input, args[1])
        return loss

    @staticmethod
    def backward(ctx, grad):
        return _known_gradient(ctx, grad)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    soft_cap: float = 0.0,
    scale: float = 1.0,
    denominator: float | Tensor | None = None,
    dtype: torch.dtype | None = None,
    inplace_backward: bool = False,
    loss_scale: float | Tensor | None = None,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` for class indices.

    The forward reads the logits once, the backward reads them once more and writes their gradient;
    beside the logits only the log-sum-exp is kept between the two, 4 bytes a token. Two options
    change where and when the gradient is made:

    | `inplace_backward` | `loss_scale` | logits are read | (N, C) tensors | logits afterwards |
    |---|---|--:|--:|---|
    | False | None | twice | 2 | as they were |
    | True | None | twice | 1 | overwritten by the backward |
    | False | given | once | 2 | as they were |
    | True | given | once | 1 | overwritten by the forward |

    Args:
        input: logits (N, C), (C) or (N, C, d1, ...), up to 8 dimensions, any strides; fp32, fp16 or
            bf16, on CPU or CUDA.
        target: class indices (N), () or (N, d1, ...), int64 or int32.
        weight: of each class, (C), fp32 or the input's dtype; no gradient.
        size_average, reduce: deprecated, as in torch.
        ignore_index: targets with this value take part in nothing and have gradient 0.
        reduction: "mean" divides by the weights of the targets that count, as torch does.
        label_smoothing: in [0, 1].
        z_loss: adds z_loss * lse^2 to the loss of each target (PaLM).
        soft_cap: logits become soft_cap * tanh(input / soft_cap) first (Gemma 2). 0: they do not.
        scale: the logits are multiplied by it before that: 1 / temperature.
        denominator: what "mean" divides by instead: the number of targets in all micro-batches and
            on all ranks, say. A tensor of one element is read on its device.
        dtype: of the loss. Default: the input's, or fp32 under autocast, as in torch. It is rounded
            from fp32, so fp32 costs nothing.
        inplace_backward: the gradient is written over the logits, which must not be used
            afterwards. Autograd notices: the backward of another op that has saved them, or a
            second backward, raises RuntimeError. Nothing is overwritten where no gradient is asked
            for.
        loss_scale: a promise that the backward will get this gradient for the loss: 1 for a plain
            `loss.backward()`, the scale of a GradScaler. Then the forward makes the gradient in the
            same pass, and nothing is rounded twice. A broken promise raises RuntimeError on CPU
            and is a device-side assertion on CUDA. Not for reduction "none".

    Returns:
        The loss: () or, for reduction "none", of the shape of `target`.

    A mean over nothing is NaN, its gradient 0. Where a target is neither `ignore_index` nor a
    class, its loss and gradient are NaN on CUDA, without waiting for the device.

    Raises:
        IndexError: such a target, on CPU.
        NotImplementedError: class probabilities as `target`; another dtype; more than 8 dimensions;
            `loss_scale` with reduction "none".
        RuntimeError: shapes or devices that do not match; an option out of its range; a `weight`
            or `denominator` that requires a gradient; `inplace_backward` over a leaf.
        ValueError: another number of targets than of inputs; an unknown `reduction`.
    """
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    settings = ignore_index, label_smoothing, z_loss, soft_cap, scale
    try:
        if not (
            weight is denominator is dtype is loss_scale is None
            and settings == _DEFAULTS
            and reduction == "mean"
            and not inplace_backward
        ):
            args = weight, _reduction.get_enum(reduction), *settings, denominator
            return _with_options(input, target, args, dtype, inplace_backward, loss_scale)
        return _forward(input, target)
    except RuntimeError:
        if target.is_floating_point():
            raise NotImplementedError(
                "cross_entropy: target: class probabilities are not supported, only indices"
            ) from None
        if input.ndim > 1 and input.shape[:1] != target.shape[:1]:
            raise ValueError(
                f"cross_entropy: target: expected one for each of {input.shape[0]} inputs, "
                f"got shape {tuple(target.shape)}"
            ) from None
        raise


_DEFAULTS = -100, 0.0, 0.0, 0.0, 1.0  # of the settings in cross_entropy


def _with_options(input, target, args, dtype, inplace_backward, loss_scale) -> Tensor:
    weight, reduction, *settings, denominator = args
    if weight is not None:
        weight = weight.to(torch.float32).contiguous()
    if denominator is not None:
        denominator = _number(denominator, input)
    args = weight, reduction, *settings, denominator
    gradient = torch.is_grad_enabled() and input.requires_grad
    if inplace_backward and gradient:
        refuse_leaves(input)
    if loss_scale is None or not gradient:
        return _forward(input, target, *args, inplace_backward, dtype)
    if reduction == 0:
        raise NotImplementedError("cross_entropy: loss_scale with reduction 'none'")
    if isinstance(loss_scale, Tensor) or loss_scale != 1:
        loss_scale = _number(loss_scale, input)
    else:
        loss_scale = None
    if inplace_backward:
        return _OverLogits.apply(input, target, loss_scale, *args, dtype)
    return _forward_backward(input, target, loss_scale, *args, dtype)[0]


def _number(value: float | Tensor, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(torch.float32)
    return torch.full((), value, dtype=torch.float32, device=like.device)


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` by `ninefold.cross_entropy`, with its further options.

    What belongs to one call, `denominator` and `loss_scale`, is given to the call.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        soft_cap: float = 0.0,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        inplace_backward: bool = False,
    ):
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.z_loss = z_loss
        self.soft_cap = soft_cap
        self.scale = scale
        self.dtype = dtype
        self.inplace_backward = inplace_backward

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        denominator: float | Tensor | None = None,
        loss_scale: float | Tensor | None = None,
    ) -> Tensor:
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            soft_cap=self.soft_cap,
            scale=self.scale,
            denominator=denominator,
            dtype=self.dtype,
            inplace_backward=self.inplace_backward,
            loss_scale=loss_scale,
        )
