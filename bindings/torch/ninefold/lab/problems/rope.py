"""Rotary embedding of queries and keys, (B, S, H, D), at the positions of the tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import ninefold

from ..c_interface import Call, contender, tried
from ..contender import Contender, Function
from ..core import Case
from ..problem import DifferentiableProblem
from ..rivals import eager_and_compiled, rival, without

_BASE = 10000.0


class RopeProblem(DifferentiableProblem):
    wanted, names = ("q", "k"), ("q_out", "k_out")

    def __init__(self, case: Case, device: str):
        super().__init__(case, device)
        batch, self.length, q_heads, k_heads, self.head_size = (
            case.sizes[name] for name in ("B", "S", "Hq", "Hk", "D")
        )
        self.interleaved = bool(case.options.get("interleaved"))
        if case.options.get("table"):
            raise NotImplementedError("option table: the rivals' tables are not ours")
        shapes = [(batch, self.length, heads, self.head_size) for heads in (q_heads, k_heads)]
        self.inputs = dict(zip(self.wanted, (self.leaf(*shape) for shape in shapes), strict=True))
        self.upstream = [self.empty(*shape) for shape in shapes]

    def angles(self, dtype: torch.dtype) -> Tensor:
        """(S, D / 2), in float64 until they are rounded."""
        pairs = torch.arange(0, self.head_size, 2, dtype=torch.float64, device=self.device)
        positions = torch.arange(self.length, dtype=torch.float64, device=self.device)
        return (positions[:, None] * _BASE ** (-pairs / self.head_size)).to(dtype)

    def tables(self) -> tuple[Tensor, Tensor]:
        """What models compute once a forward for all layers, in the activations' dtype as Hugging
        Face has it: cos and sin, (S, D / 2)."""
        angles = self.angles(torch.float64)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        cos, sin = cos[:, None, :], sin[:, None, :]  # for all heads
        if self.interleaved:
            first, second = x[..., 0::2], x[..., 1::2]
            pairs = (first * cos - second * sin, second * cos + first * sin)
            return torch.stack(pairs, -1).flatten(-2)
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def reference(self, q: Tensor, k: Tensor) -> Any:
        angles = self.angles(torch.float64)
        cos, sin = angles.cos(), angles.sin()
        return self.turned(q, cos, sin), self.turned(k, cos, sin)

    def functions(self) -> list[Function]:
        cos, sin = self.tables()

        def eager(q: Tensor, k: Tensor) -> Any:
            return self.turned(q, cos, sin), self.turned(k, cos, sin)

        return [
            Function("ninefold", "", self.ours),
            *eager_and_compiled(eager, self.device.type),
            self._liger(cos, sin),
            self._quack(cos, sin),
        ]

    def ours(self, q: Tensor, k: Tensor) -> Any:
        return ninefold.apply_rotary(q, k, interleaved=self.interleaved)

    def _liger(self, cos: Tensor, sin: Tensor) -> Function:
        if self.interleaved:
            return without("Liger", "turns the halves of a head, not pairs side by side")
        cos, sin = (torch.cat((table, table), -1) for table in (cos, sin))

        def made(ops: Any) -> Any:
            def call(q: Tensor, k: Tensor) -> Any:
                heads_first = q.transpose(1, 2), k.transpose(1, 2)
                q, k = ops.LigerRopeFunction.apply(*heads_first, cos, sin)
                return q.transpose(1, 2), k.transpose(1, 2)

            return call

        return rival(
            "Liger",
            "liger_kernel.ops",
            self.device.type,
            made,
            rung="in place",  # it knows no other way
            forward_overwrites=("q", "k"),
            backward_overwrites=("upstream",),
        )

    def _quack(self, cos: Tensor, sin: Tensor) -> Function:
        def made(rotary: Any) -> Any:
            def call(q: Tensor, k: Tensor) -> Any:
                return tuple(
                    rotary.apply_rotary_emb(x, cos, sin, interleaved=self.interleaved)
                    for x in (q, k)
                )

            return call

        return rival("QuACK", "quack.rotary", self.device.type, made)

    def others(self, direction: str) -> list[Contender]:
        return [tried(lambda: self._c_interface(direction))]

    def _c_interface(self, direction: str) -> Contender:
        backward = direction == "backward"
        q, k = self.upstream if backward else (self.inputs["q"], self.inputs["k"])
        q_out, k_out = (self.empty(*x.shape) for x in (q, k))
        call = Call(
            f"nf_rope_{direction}",
            q=q,
            k=k,
            q_out=q_out,
            k_out=k_out,
            layout=int(self.interleaved),  # nf_rope_layout
        )
        names = ("dq", "dk") if backward else self.names
        return contender(self, [call], dict(zip(names, (q_out, k_out), strict=True)))
