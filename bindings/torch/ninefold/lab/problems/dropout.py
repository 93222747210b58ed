"""Dropout, and the residual addition that follows it. Everyone draws masks of their own, so an
output is held against its own mask, and the mask against its probability."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

import ninefold

from ..c_interface import Call, contender, tried
from ..contender import Contender, Function
from ..core import Case, Error
from ..judge import judge
from ..problem import DifferentiableProblem
from ..rivals import eager_and_compiled, without

_P = 0.125  # a multiple of every generator's step
_ELEMENTS = 1 << 26  # that are taken to float64 at a time
_SIGMAS = 6  # a share of dropped elements further off than this is no accident


class DropoutProblem(DifferentiableProblem):
    names = ("y",)

    def __init__(self, case: Case, device: str):
        super().__init__(case, device)
        rows, columns = case.sizes["M"], case.sizes["N"]
        self.residual = bool(case.options.get("residual"))
        self.inputs = {"x": self.leaf(rows, columns)}
        if self.residual:
            self.inputs["residual"] = self.leaf(rows, columns)
        self.wanted = ("x",)
        self.upstream = [self.empty(rows, columns)]

    def expected(self, direction: str) -> dict[str, Tensor]:
        """What stands where an element is kept; `judge` looks for the mask."""
        found = {}
        if direction != "backward":
            found["y"] = self.inputs["x"].detach().double() / (1 - _P)
        if direction != "forward":
            found["dx"] = self.upstream[0].double() / (1 - _P)
        return found

    def judge(self, results: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Error:
        right = {name: self._masked(name, results[name], e) for name, e in expected.items()}
        return judge(results, right)

    def _masked(self, name: str, out: Tensor, expected: Tensor) -> Tensor:
        """What is right under the mask that the output shows, some rows at a time: all of it in
        float64 might not fit. Where kept and dropped round alike, nothing shows which it was."""
        right = torch.empty_like(expected)
        rounding = 2 * torch.finfo(out.dtype).eps
        dropped_count = clear_count = 0
        few = max(1, _ELEMENTS // out.shape[-1])
        for start in range(0, out.shape[0], few):
            rows = slice(start, start + few)
            mine, kept = out[rows].detach().double(), expected[rows]
            dropped = torch.zeros_like(kept)
            if name == "y" and self.residual:
                dropped = self.inputs["residual"][rows].detach().double()
                kept = kept + dropped
            is_kept = (mine - kept).abs() <= (mine - dropped).abs()
            is_clear = (kept - dropped).abs() > rounding * torch.maximum(kept.abs(), dropped.abs())
            clear_count += is_clear.count_nonzero().item()
            dropped_count += (is_clear & ~is_kept).count_nonzero().item()
            right[rows] = torch.where(is_kept, kept, dropped)
        share = dropped_count / clear_count
        if abs(share - _P) > _SIGMAS * (_P * (1 - _P) / clear_count) ** 0.5:
            raise ValueError(f"{name}: a share of {share:.4f} is dropped, not {_P}")
        return right

    def eager(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = F.dropout(x, _P, training=True)
        return y if residual is None else residual + y

    def ours(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is not None:
            return ninefold.dropout_add(x, residual, _P)
        return ninefold.dropout(x, _P)

    def functions(self) -> list[Function]:
        return [
            Function("ninefold", "", self.ours),
            *eager_and_compiled(self.eager, self.device.type),
            without("Liger", "has no dropout"),
            without("QuACK", "has dropout on an operand of its matrix products alone"),
        ]

    def others(self, direction: str) -> list[Contender]:
        return [tried(lambda: self._c_interface(direction))]

    def _c_interface(self, direction: str) -> Contender:
        # As a captured training step has it: seed and offset lie on the device.
        seed, offset = (torch.tensor(n, device=self.device) for n in (self.case.index, 3))
        numbers = {"p": _P, "seed": seed, "offset": offset}
        if direction == "backward":
            dx = torch.empty_like(self.upstream[0])
            call = Call("nf_dropout_backward", dy=self.upstream[0], dx=dx, **numbers)
            return contender(self, [call], {"dx": dx})
        y = torch.empty_like(self.upstream[0])
        given = {name: value.detach() for name, value in self.inputs.items()}
        return contender(self, [Call("nf_dropout_forward", **given, y=y, **numbers)], {"y": y})
