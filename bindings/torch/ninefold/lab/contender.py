"""Who can do a case's work: a call, what it needs before each call, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# Outputs by name; a gradient is "d" and the input's name. A function is called by the check, and
# outside of the clock.
Results = Mapping[str, "Tensor | Callable[[], Tensor]"]


@dataclass
class Contender:
    """One way to do the work of a case's direction.

    call: one call; its results are fresh, given, or laid over inputs.
    prepare: what a call uses up, for example the graph that a backward runs through. Made before
        each call and outside of the clock.
    overwrites: the inputs that a call leaves changed. They are put back before each call.
    given: outputs that the caller owns: NaN before a call that is checked.
    kept: asked for the bytes that must live from forward to backward beyond the inputs.
    workspace_bytes: what the caller brings beside outputs.
    scale: what the expected outputs of these names are multiplied with before the comparison,
        where a contender's definition leaves a factor to its caller.
    absent: instead of all this, why there is nothing to call.
    headline: False for what never is the rival of a ratio.
    """

    provider: str
    rung: str = ""
    call: Callable[[], Results] | None = None
    prepare: Callable[[], None] | None = None
    overwrites: Sequence[Tensor] = ()
    given: Sequence[Tensor] = ()
    kept: Callable[[], int] = lambda: 0
    workspace_bytes: int = 0
    scale: Mapping[str, float] = field(default_factory=dict)
    absent: str = ""
    headline: bool = True

    @property
    def ours(self) -> bool:
        return self.provider == "ninefold"

    @property
    def label(self) -> str:
        return f"{self.provider} {self.rung}".rstrip()


@dataclass
class Function:
    """A provider's function of an op's inputs, by which autograd does every direction.

    call(**inputs): returns the outputs, a tensor or a tuple of them.
    forward_overwrites, backward_overwrites: names of inputs that it leaves changed; "upstream" is
        the gradient that arrives.
    backward: False where its backward alone is not the op's, because its forward does the work.
    """

    provider: str
    rung: str = ""
    call: Callable[..., Any] | None = None
    forward_overwrites: Sequence[str] = ()
    backward_overwrites: Sequence[str] = ()
    backward: bool = True
    absent: str = ""
    headline: bool = True


def outputs_of(call: Callable[..., Any], inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    outputs = call(**inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


class Differentiation:
    """The directions of a function: forward without a graph, backward through a fresh graph that
    was made outside of the clock, and both.

    inputs: by name. wanted: those whose gradients are asked for. names: of the outputs.
    upstream: the gradient that arrives at each output, or () for a scalar loss, whose is 1.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        wanted: Sequence[str],
        names: Sequence[str],
        upstream: Sequence[Tensor],
    ):
        self.inputs, self.wanted, self.names, self.upstream = inputs, wanted, names, upstream

    def contender(self, function: Function, direction: str) -> Contender:
        contender = Contender(
            function.provider, function.rung, absent=function.absent, headline=function.headline
        )
        if contender.absent:
            return contender
        if direction == "backward" and not function.backward:
            contender.absent = "its forward computes the gradient; see forward_backward"
            return contender
        overwritten = set(function.forward_overwrites)
        if direction != "forward":
            overwritten |= set(function.backward_overwrites)
        for name in sorted(overwritten):
            more = self.upstream if name == "upstream" else [self.inputs[name]]
            contender.overwrites = [*contender.overwrites, *more]
        contender.call, contender.prepare = self._calls(function.call, direction)
        return contender

    def forward(self, call: Callable[..., Any]) -> tuple[Tensor, ...]:
        return outputs_of(call, self.inputs)

    def _calls(self, call: Callable[..., Any], direction: str) -> tuple[Callable, Callable | None]:
        leaves = [self.inputs[name] for name in self.wanted]
        gradients = tuple(f"d{name}" for name in self.wanted)
        upstream = self.upstream or None
        graph: list[tuple[Tensor, ...]] = []  # let go where the next one is made, outside the clock

        def forward():
            with torch.no_grad():
                return dict(zip(self.names, self.forward(call), strict=True))

        def prepare():
            graph[:] = [self.forward(call)]

        def backward():
            grads = torch.autograd.grad(graph[0], leaves, upstream)
            return dict(zip(gradients, grads, strict=True))

        def both():
            outputs = self.forward(call)
            grads = torch.autograd.grad(outputs, leaves, upstream)
            return dict(zip((*self.names, *gradients), (*outputs, *grads), strict=True))

        if direction == "forward":
            return forward, None
        return (backward, prepare) if direction == "backward" else (both, None)
