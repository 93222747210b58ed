"""Cross-entropy of logits against class indices, in mean over the tokens; with option `in_place`
whoever can lays the gradient over the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import ninefold

from ..c_interface import Call, contender, tried
from ..contender import Contender, Function
from ..core import Case
from ..problem import DifferentiableProblem
from ..rivals import contender_of, eager_and_compiled, provider, rival, without

# Of option `all_options`, as in ops/cross_entropy/bench.cpp.
_SMOOTHING, _Z_LOSS, _SOFT_CAP = 0.1, 1e-4, 30.0
_ELEMENTS = 1 << 26  # that are taken to float64 at a time


class _Produced(torch.autograd.Function):
    """Logits as the last layer of a model leaves them: neither a leaf nor a view of one, so that
    they may be overwritten."""

    @staticmethod
    def forward(ctx, leaf: Tensor) -> Tensor:
        return leaf.new_empty(0).set_(leaf.detach())

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


class CrossEntropyProblem(DifferentiableProblem):
    wanted, names = ("logits",), ("loss",)

    def __init__(self, case: Case, device: str):
        super().__init__(case, device)
        self.tokens, self.classes = case.sizes["N"], case.sizes["V"]
        self.in_place = bool(case.options.get("in_place"))
        self.all_options = bool(case.options.get("all_options"))
        self.inputs = {
            "logits": _Produced.apply(self.leaf(self.tokens, self.classes)),
            "targets": torch.zeros(self.tokens, dtype=torch.int64, device=self.device),
        }
        if self.all_options:
            self.inputs["weights"] = self.empty(self.classes, dtype=torch.float32)
        self._mean_weight = 1.0

    def fill(self, seed: int) -> None:
        super().fill(seed)
        generator = torch.Generator(self.device).manual_seed(seed)
        targets = self.inputs["targets"].random_(0, self.classes, generator=generator)
        if self.all_options:
            weights = self.inputs["weights"].abs_().add_(0.5)
            self._mean_weight = weights[targets].mean().item()

    def expected(self, direction: str) -> dict[str, Tensor]:
        """A few rows at a time: the graph of all of them would not fit."""
        logits, targets = self.inputs["logits"].detach(), self.inputs["targets"]
        weights = self.inputs["weights"].double() if self.all_options else None
        counted = self.tokens if weights is None else weights[targets].sum()
        loss, gradients = 0.0, []
        few = max(1, _ELEMENTS // self.classes)
        for some, their in zip(logits.split(few), targets.split(few), strict=True):
            exact = some.double().requires_grad_(direction != "forward")
            part = self.summed(exact, their, weights) / counted
            loss = loss + part.detach()
            if direction != "forward":
                gradients += torch.autograd.grad(part, exact)
        results = {} if direction == "backward" else {"loss": loss}
        return {**results, "dlogits": torch.cat(gradients)} if gradients else results

    def summed(self, logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The loss in sum over the tokens."""
        if weights is None:
            return F.cross_entropy(logits, targets, reduction="sum")
        capped = _SOFT_CAP * torch.tanh(logits / _SOFT_CAP)
        loss = F.cross_entropy(
            capped, targets, weights, label_smoothing=_SMOOTHING, reduction="sum"
        )
        return loss + _Z_LOSS * capped.logsumexp(-1).square().sum()

    def eager(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        if weights is None:
            return F.cross_entropy(logits, targets)
        return self.summed(logits.float(), targets, weights) / weights[targets].sum()

    def ours(self, logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        options: dict[str, Any] = {}
        if self.in_place:
            options.update(inplace_backward=True, loss_scale=1.0)
        if weights is not None:
            options.update(
                weight=weights, label_smoothing=_SMOOTHING, z_loss=_Z_LOSS, soft_cap=_SOFT_CAP
            )
        return ninefold.cross_entropy(logits, targets, **options)

    def functions(self) -> list[Function]:
        overwrites = ("logits",) if self.in_place else ()
        return [
            Function("ninefold", "", self.ours, forward_overwrites=overwrites),
            *eager_and_compiled(self.eager, self.device.type),
            rival(
                "Liger",
                "liger_kernel.ops",
                self.device.type,
                self._liger,
                rung="in place",  # it knows no other way
                forward_overwrites=("logits",),
                backward=False,
            ),
            self._quack(),
            Function(
                provider("Apple CCE"),
                absent="takes the last matrix product along, an op that Ninefold has not yet",
            ),
        ]

    def _liger(self, ops: Any) -> Any:
        def call(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
            if weights is None:
                return ops.LigerCrossEntropyFunction.apply(logits, targets, None)[0]
            # It divides the z-loss by the number of tokens, and we by their weights.
            z_loss = _Z_LOSS / self._mean_weight
            options = (-100, z_loss, _SMOOTHING, "mean", _SOFT_CAP)
            return ops.LigerCrossEntropyFunction.apply(logits, targets, weights, *options)[0]

        return call

    def _quack(self) -> Function:
        if self.all_options:
            return without("QuACK", "has no smoothing, z-loss or soft cap")
        in_place = self.in_place

        def made(quack: Any) -> Any:
            def call(logits: Tensor, targets: Tensor) -> Tensor:
                return quack.cross_entropy(logits, targets, inplace_backward=in_place)

            return call

        return rival(
            "QuACK",
            "quack",
            self.device.type,
            made,
            rung="in place" if in_place else "",
            backward_overwrites=("logits",) if in_place else (),
        )

    def others(self, direction: str) -> list[Contender]:
        found = [tried(lambda: self._c_interface(direction))]
        if direction == "forward_backward" and not self.all_options:
            found.append(
                contender_of(
                    "QuACK", "quack.cross_entropy", self.device.type, self._one_pass, "one pass"
                )
            )
        return found

    def _c_interface(self, direction: str) -> Contender:
        logits = self.inputs["logits"].detach()
        loss = self.empty(dtype=torch.float32)
        dlogits = logits if self.in_place else torch.empty_like(logits)
        args = {"logits": logits, "targets": self.inputs["targets"]}
        if self.all_options:
            args.update(
                class_weights=self.inputs["weights"],
                label_smoothing=_SMOOTHING,
                z_loss=_Z_LOSS,
                soft_cap=_SOFT_CAP,
            )
        overwrites = [logits] if self.in_place and direction != "forward" else []
        if direction == "forward":
            calls = [Call("nf_cross_entropy_forward", **args, loss=loss)]
            return contender(self, calls, {"loss": loss})
        if direction == "forward_backward":
            both = Call("nf_cross_entropy_forward_backward", **args, loss=loss, dlogits=dlogits)
            results = {"loss": loss, "dlogits": dlogits}
            return contender(self, [both], results, overwrites=overwrites)
        lse = self.empty(self.tokens, dtype=torch.float32)
        forward = Call("nf_cross_entropy_forward", **args, lse=lse)
        backward = Call("nf_cross_entropy_backward", **args, lse=lse, dlogits=dlogits)
        results = {"dlogits": dlogits}
        return contender(self, [backward], results, before=[forward], overwrites=overwrites)

    def _one_pass(self, quack: Any) -> Contender:
        """QuACK's kernel that reads the logits once for the loss and the gradient. What it leaves
        to the caller is the mean: its gradient is that of the sum."""
        logits, targets = self.inputs["logits"].detach(), self.inputs["targets"]

        def call() -> dict:
            losses, dlogits = quack.cross_entropy_fwd(
                logits, targets, return_dx=True, inplace_backward=self.in_place
            )
            return {"loss": losses.mean, "dlogits": dlogits}

        return Contender(
            provider("QuACK"),
            "one pass in place" if self.in_place else "one pass",
            call,
            overwrites=[logits] if self.in_place else (),
            kept=lambda: 0,
            scale={"dlogits": float(self.tokens)},
        )
