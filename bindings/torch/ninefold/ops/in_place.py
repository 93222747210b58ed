"""What must hold before an operator writes over a tensor that autograd knows."""

from __future__ import annotations

from torch import Tensor


def refuse_leaves(*tensors: Tensor | None) -> None:
    """Raises RuntimeError, as torch's in-place functions do, for leaves that require a gradient and
    for views of them: their values are the caller's, a parameter for example."""
    for tensor in tensors:
        if tensor is None or not tensor.requires_grad:
            continue
        base = tensor if tensor._base is None else tensor._base
        if base.is_leaf:
            raise RuntimeError(
                "a leaf that requires a gradient, or a view of one, must not be written in place"
            )
