"""The loss of transformers' causal language models, without its fp32 copy of the logits."""

from __future__ import annotations

import inspect
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..ops import cross_entropy
from .override import LossSwap
from .recognise import check_parameters, check_results, check_uses


def causal_lm_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    *,
    inplace_backward: bool = False,
    loss_scale: float | Tensor | None = None,
    **kwargs,
) -> Tensor:
    """Cross-entropy of each token's logits against the label after it, as ForCausalLMLoss has it.

    logits: (B, S, vocab_size). labels: (B, S); or shift_labels (B, S), already one to the left.
    num_items_in_batch: what the sum is divided by; without it, the number of labels that count.
    inplace_backward, loss_scale: of `ninefold.cross_entropy`. The model returns its logits, and a
        graph of torch.compile cannot have its backward write over a result: there inplace_backward
        has no effect without loss_scale, whose gradient the forward makes.

    Returns an fp32 scalar.
    """
    if torch.compiler.is_dynamo_compiling() and loss_scale is None:
        inplace_backward = False
    if shift_labels is None:
        shift_labels = pad(labels, (0, 1), value=ignore_index)[..., 1:]
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    return cross_entropy(
        logits.view(-1, vocab_size),
        shift_labels.reshape(-1).to(logits.device),
        ignore_index=ignore_index,
        denominator=num_items_in_batch,
        dtype=torch.float32,
        inplace_backward=inplace_backward,
        loss_scale=loss_scale,
    )


def loss_swaps(model_class: type[nn.Module]) -> list[LossSwap]:
    """cross_entropy and cross_entropy_ for a class of causal language models."""
    from transformers import PreTrainedModel
    from transformers.loss.loss_utils import ForCausalLMLoss

    def check() -> None:
        check_uses(model_class.forward, "loss_function")
        check_uses(PreTrainedModel.loss_function.fget, "_loss_function")
        *ours, _, _, extra = inspect.signature(causal_lm_loss).parameters
        check_parameters(ForCausalLMLoss, *ours, extra)
        logits = torch.arange(40.0, dtype=torch.float32, device="cpu").sin().view(2, 4, 5)
        labels = torch.tensor([[0, 3, 1, 4], [1, 1, 2, 0]], device="cpu")
        for options in {}, {"num_items_in_batch": 3, "ignore_index": 1}, {"shift_labels": labels}:
            arguments = {"logits": 9 * logits, "labels": labels, "vocab_size": 5, **options}
            check_results(ForCausalLMLoss, causal_lm_loss, **arguments)

    in_place = partial(causal_lm_loss, inplace_backward=True)
    return [
        LossSwap("cross_entropy_", (model_class,), in_place, check, ForCausalLMLoss),
        LossSwap("cross_entropy", (model_class,), causal_lm_loss, check, ForCausalLMLoss),
    ]
