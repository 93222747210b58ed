"""The activations of transformer blocks: GELU, with a bias or not, and SwiGLU of two tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import ninefold

from ..c_interface import Call, contender, tried
from ..contender import Contender, Function
from ..core import Case
from ..problem import DifferentiableProblem
from ..rivals import eager_and_compiled, rival, without

_GELU_TANH, _GELU_ERF, _SILU = 0, 1, 2  # nf_activation_kind
_TWO_TENSORS = 1  # nf_activation_gating


class ActivationProblem(DifferentiableProblem):
    names = ("y",)

    def __init__(self, case: Case, device: str):
        super().__init__(case, device)
        rows, columns = case.sizes["M"], case.sizes["N"]
        self.kind = case.options["kind"]
        self.gated, self.bias = bool(case.options.get("gated")), bool(case.options.get("bias"))
        if self.kind not in (_GELU_TANH, _GELU_ERF, _SILU) or self.gated != (self.kind == _SILU):
            raise NotImplementedError("only GELU, and SiLU with a gate, have rivals here")
        self.inputs = {"x": self.leaf(rows, columns)}
        if self.gated:
            self.inputs["up"] = self.leaf(rows, columns)
        if self.bias:
            self.inputs["bias"] = self.leaf(columns)
        self.wanted = tuple(self.inputs)
        self.upstream = [self.empty(rows, columns)]
        self.approximate = "tanh" if self.kind == _GELU_TANH else "none"

    def reference(self, x: Tensor, up: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        if up is not None:
            return F.silu(x) * up
        return F.gelu(x if bias is None else x + bias, approximate=self.approximate)

    def ours(self, x: Tensor, up: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        if up is not None:
            return ninefold.swiglu(x, up)
        if bias is not None:
            return ninefold.bias_gelu(x, bias, self.approximate)
        return ninefold.gelu(x, self.approximate)

    def functions(self) -> list[Function]:
        return [
            Function("ninefold", "", self.ours),
            *eager_and_compiled(self.reference, self.device.type),
            self._liger(),
            without("QuACK", "has activations as epilogues of its matrix products alone"),
        ]

    def _liger(self) -> Function:
        if not self.gated:
            return without("Liger", "has gated activations alone")

        def made(ops: Any) -> Callable:
            return lambda x, up: ops.LigerSiLUMulFunction.apply(x, up)

        # Its backward lays the gradients over gate and up.
        return rival(
            "Liger",
            "liger_kernel.ops",
            self.device.type,
            made,
            backward_overwrites=("x", "up"),
        )

    def others(self, direction: str) -> list[Contender]:
        return [tried(lambda: self._c_interface(direction))]

    def _c_interface(self, direction: str) -> Contender:
        given = {name: value.detach() for name, value in self.inputs.items()}
        options = {"kind": self.kind, "gating": _TWO_TENSORS if self.gated else 0}
        y = torch.empty_like(given["x"])
        forward = Call("nf_activation_forward", **given, **options, y=y)
        if direction == "forward":
            return contender(self, [forward], {"y": y})
        gradients = {f"d{name}": torch.empty_like(value) for name, value in given.items()}
        (dy,) = self.upstream
        backward = Call("nf_activation_backward", **given, **options, **gradients, dy=dy)
        if direction == "backward":
            return contender(self, [backward], gradients)
        return contender(self, [forward, backward], {"y": y, **gradients})
