"""softmax and log_softmax over rows, with a causal mask where the shape asks for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import starmap

import torch
from torch import Tensor
from torch.nn import functional as F

import ninefold

from ..c_interface import RUNG, Call, contender, tried
from ..contender import Contender, Function
from ..core import Case, Error
from ..judge import judge
from ..problem import DTYPES, DifferentiableProblem
from ..rivals import PYTORCH, compiled, eager_and_compiled, rival, without

_BOTTOM_RIGHT = 1  # nf_causal


class SoftmaxProblem(DifferentiableProblem):
    wanted, names = ("x",), ("y",)

    def __init__(self, case: Case, device: str):
        super().__init__(case, device)
        options = case.options
        rows, columns = case.sizes["M"], case.sizes["N"]
        self.queries = options.get("causal", 0)
        self.log, self.given = bool(options.get("log")), bool(options.get("given"))
        self.out_dtype = DTYPES[case.dtype.rpartition("-")[2]]
        shape = (rows // self.queries, self.queries, columns) if self.queries else (rows, columns)
        offset = options.get("offset", 0)
        x = self.empty(rows * columns + offset)[offset:].view(shape).requires_grad_()
        self.inputs = {"x": x}
        self.upstream = [self.empty(*shape, dtype=self.out_dtype)]

    def hidden(self) -> Tensor:
        """True where a query must not look: keys after it, the last query seeing all."""
        keys = self.case.sizes["N"]
        queries = torch.arange(self.queries, device=self.device)[:, None] + keys - self.queries
        return torch.arange(keys, device=self.device)[None, :] > queries

    def reference(self, x: Tensor) -> Tensor:
        if self.queries:
            x = x.masked_fill(self.hidden(), float("-inf"))
        return x.log_softmax(-1) if self.log else x.softmax(-1)

    def expected(self, direction: str) -> dict[str, Tensor]:
        found = super().expected(direction)
        self._slack = {}
        if "dx" in found and self.out_dtype != torch.float32:
            self._slack["dx"] = self._moved_by_y(found["dx"])
        return found

    def _moved_by_y(self, dx: Tensor) -> Tensor:
        """Everyone keeps y rounded for the backward; where a row has few keys, or y is a logarithm,
        its rounding moves the gradient by more than the gradient's own."""
        y = self.reference(self.inputs["x"].detach().double())
        dy = self.upstream[0].double()
        if self.log:
            dy = dy.masked_fill(y == float("-inf"), 0)
            moved = (y * y.exp()).nan_to_num_(0) * dy.sum(-1, True)
        else:
            weighted = y * dy
            moved = dx.abs() + y * weighted.abs().sum(-1, True)
        return moved.abs_().mul_(torch.finfo(self.out_dtype).eps / 2)

    def judge(self, results: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Error:
        return judge(results, expected, self._slack)

    def functions(self) -> list[Function]:
        if self.given:
            return []
        plain = self.case.dtype in DTYPES and not self.queries and not self.log
        return [
            Function("ninefold", "", self.ours),
            *eager_and_compiled(self.eager, self.device.type),
            self._liger(plain),
            self._quack(plain),
        ]

    def ours(self, x: Tensor) -> Tensor:
        function = ninefold.log_softmax if self.log else ninefold.softmax
        return function(x, -1, self._dtype(), causal=bool(self.queries))

    def eager(self, x: Tensor) -> Tensor:
        if self.queries:
            x = x.masked_fill(self.hidden(), float("-inf"))
        return (F.log_softmax if self.log else F.softmax)(x, -1, dtype=self._dtype())

    def _dtype(self) -> torch.dtype | None:
        return None if self.out_dtype == self.dtype else self.out_dtype

    def _liger(self, plain: bool) -> Function:
        if not plain:
            return without("Liger", "has softmax alone: not causal, no logarithm, one dtype")
        module = "liger_kernel.transformers.functional"
        return rival("Liger", module, self.device.type, lambda m: m.liger_softmax)

    def _quack(self, plain: bool) -> Function:
        if not plain:
            return without("QuACK", "has softmax alone: not causal, no logarithm, one dtype")
        return rival("QuACK", "quack", self.device.type, lambda m: m.softmax)

    def others(self, direction: str) -> list[Contender]:
        rung = "" if self.given else RUNG
        ours = tried(lambda: self._c_interface(direction, rung), rung)
        return [ours, *(self._into_given() if self.given else [])]

    def _c_interface(self, direction: str, rung: str) -> Contender:
        x, (dy,) = self.inputs["x"], self.upstream
        options = {"causal": _BOTTOM_RIGHT if self.queries else 0, "log": self.log}
        y = torch.empty_like(dy)
        forward = Call("nf_softmax_forward", x=x, y=y, **options)
        if direction == "forward":
            return contender(self, [forward], {"y": y}, rung=rung)
        dx = self.empty(*x.shape)
        backward = Call("nf_softmax_backward", y=y, dy=dy, dx=dx, **options)
        return contender(self, [backward], {"dx": dx}, before=[forward], rung=rung)

    def _into_given(self) -> list[Contender]:
        """Who can write the forward into memory that the caller owns."""
        x, y = self.inputs["x"].detach(), torch.empty_like(self.upstream[0])

        def eager(x: Tensor, y: Tensor) -> None:
            torch.softmax(x, -1, out=y)

        def fused(x: Tensor, y: Tensor) -> None:
            y.copy_(x.softmax(-1))

        def made(rung: str, call: Callable[[Tensor, Tensor], None]) -> Contender:
            def into_y():
                call(x, y)
                return {"y": y}

            return Contender(PYTORCH, rung, into_y, given=[y])

        return [made("eager out=", eager), *starmap(made, compiled(fused, self.device.type))]
