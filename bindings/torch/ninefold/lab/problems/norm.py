"""RMSNorm and LayerNorm over rows, after the residual addition where the shape asks for one."""

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

_EPS = 1e-5


class NormProblem(DifferentiableProblem):
    def __init__(self, case: Case, device: str):
        super().__init__(case, device)
        self.rows, self.columns = case.sizes["M"], case.sizes["N"]
        self.layer = bool(case.options.get("layer"))
        self.residual = bool(case.options.get("residual"))
        self.inputs = {"x": self.leaf(self.rows, self.columns)}
        if self.residual:
            self.inputs["residual"] = self.leaf(self.rows, self.columns)
        self.inputs["weight"] = self.leaf(self.columns)
        if self.layer:
            self.inputs["bias"] = self.leaf(self.columns)
        self.wanted = tuple(self.inputs)
        self.names = ("y", "h") if self.residual else ("y",)
        self.upstream = [self.empty(self.rows, self.columns) for _ in self.names]

    def reference(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Any:
        if residual is None:
            return self.normalised(x, weight, bias)
        # The stream is rounded to its dtype before it is normalised, and its gradient is not.
        h = x + residual
        h = h + (h.detach().to(self.dtype).double() - h.detach())
        return self.normalised(h, weight, bias), h

    def eager(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Any:
        if residual is None:
            return self.normalised(x, weight, bias)
        h = x + residual
        return self.normalised(h, weight, bias), h

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shape = (self.columns,)
        if self.layer:
            return F.layer_norm(x, shape, weight, bias, _EPS)
        return F.rms_norm(x, shape, weight, _EPS)

    def ours(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Any:
        shape = (self.columns,)
        options = {} if residual is None else {"residual": residual}
        if self.layer:
            return ninefold.layer_norm(x, shape, weight, bias, _EPS, **options)
        return ninefold.rms_norm(x, shape, weight, _EPS, **options)

    def functions(self) -> list[Function]:
        return [
            Function("ninefold", "", self.ours),
            *eager_and_compiled(self.eager, self.device.type),
            self._liger(),
            *self._quack(),
        ]

    def _liger(self) -> Function:
        if self.layer and self.residual:
            return without("Liger", "has no LayerNorm with a residual")

        def made(ops: Any) -> Any:
            if self.layer:
                return lambda x, weight, bias: ops.LigerLayerNormFunction.apply(
                    x, weight, bias, _EPS
                )
            if self.residual:
                return lambda x, weight, residual: ops.LigerFusedAddRMSNormFunction.apply(
                    x, residual, weight, _EPS
                )
            return lambda x, weight: ops.LigerRMSNormFunction.apply(x, weight, _EPS)

        # Its RMSNorm lays dx over the gradient that arrives.
        overwrites = ("upstream",) if not self.layer and not self.residual else ()
        device = self.device.type
        return rival("Liger", "liger_kernel.ops", device, made, backward_overwrites=overwrites)

    def _quack(self) -> list[Function]:
        if self.layer:
            return [without("QuACK", "has no LayerNorm with a residual")] if self.residual else []

        def made(quack: Any) -> Any:
            return lambda x, weight, residual=None: quack.rmsnorm(
                x, weight, residual=residual, eps=_EPS, prenorm=self.residual
            )

        return [rival("QuACK", "quack", self.device.type, made)]

    def others(self, direction: str) -> list[Contender]:
        found = [tried(lambda: self._c_interface(direction))]
        if self.layer and not self.residual:
            device = self.device.type
            found.append(
                contender_of(
                    "QuACK", "quack.rmsnorm", device, lambda m: self._quack_layer(m, direction)
                )
            )
        return found

    def _quack_layer(self, quack: Any, direction: str) -> Contender:
        """Its LayerNorm has no autograd, and takes parameters in fp32 alone."""
        x, (dy,) = self.inputs["x"].detach(), self.upstream
        saved: list[Tensor] = []

        def parameters() -> tuple[Tensor, Tensor]:
            return self.inputs["weight"].detach().float(), self.inputs["bias"].detach().float()

        weight, bias = parameters()

        def prepare() -> None:
            for to, new in zip((weight, bias), parameters(), strict=True):
                to.copy_(new)
            if direction == "backward":
                saved[:] = quack.layernorm_fwd(x, weight, bias, _EPS, True, True)[1:]

        def backward(rstd: Tensor, mean: Tensor) -> dict:
            dx, dweight, dbias = quack.layernorm_bwd(x, weight, dy, rstd, mean)
            return {"dx": dx, "dweight": dweight, "dbias": dbias}

        def both() -> dict:
            y, rstd, mean = quack.layernorm_fwd(x, weight, bias, _EPS, True, True)
            return {"y": y, **backward(rstd, mean)}

        calls = {
            "forward": lambda: {"y": quack.layernorm_fwd(x, weight, bias, _EPS)},
            "backward": lambda: backward(*saved),
            "forward_backward": both,
        }
        kept = 2 * 4 * self.rows
        return Contender(
            provider("QuACK"), "", calls[direction], prepare=prepare, kept=lambda: kept
        )

    def _c_interface(self, direction: str) -> Contender:
        kind = "layer" if self.layer else "rms"
        given = {name: value.detach() for name, value in self.inputs.items()}
        parameters = {"weight": given["weight"]}
        per_row = {"rstd": self.empty(self.rows, dtype=torch.float32)}
        if self.layer:
            per_row["mean"] = self.empty(self.rows, dtype=torch.float32)
        y = torch.empty_like(given["x"])
        h = torch.empty_like(y) if self.residual else given["x"]
        stream = {"residual_out": h} if self.residual else {}
        forward = Call(f"nf_{kind}_norm_forward", **given, **per_row, **stream, y=y)
        made = {"y": y, **({"h": h} if self.residual else {})}
        if direction == "forward":
            return contender(self, [forward], made)

        gradients = {f"d{name}": torch.empty_like(given[name]) for name in self.wanted}
        # The gradients of x and of the residual are one and the same.
        dx = gradients.pop("dx")
        gradients.pop("dresidual", None)
        arriving = {"d_residual_out": self.upstream[1]} if self.residual else {}
        backward = Call(
            f"nf_{kind}_norm_backward",
            **parameters,
            **per_row,
            **arriving,
            **gradients,
            residual_out=h,
            dy=self.upstream[0],
            d_residual=dx,
        )
        results = {"dx": dx, **gradients, **({"dresidual": dx} if self.residual else {})}
        if direction == "backward":
            return contender(self, [backward], results, before=[forward])
        return contender(self, [forward, backward], {**made, **results})
