"""One shape and dtype of an op: its inputs, what is right, and who can do the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .contender import Contender, Differentiation, Function, Results, outputs_of
from .core import Case, Error
from .judge import judge
from .memory import kept_bytes

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Problem:
    """What all directions of a case share. An op says in its subclass what its inputs are.

    inputs: by name, the same tensors for all contenders.
    """

    inputs: dict[str, Any]

    def __init__(self, case: Case, device: str):
        self.case, self.device = case, torch.device(device)
        self.dtype = DTYPES[case.dtype.partition("-")[0]]

    def fill(self, seed: int) -> None:
        """Fresh normal numbers in every floating-point input, other data as it was."""
        generator = torch.Generator(self.device).manual_seed(seed)
        with torch.no_grad():
            for tensor in self.filled():
                tensor.normal_(generator=generator)

    def leaf(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An input that a gradient is asked for."""
        return self.empty(*shape, dtype=dtype).requires_grad_()

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def filled(self) -> list[Tensor]:
        return [t for t in self.inputs.values() if isinstance(t, Tensor) and t.is_floating_point()]

    def expected(self, direction: str) -> dict[str, Tensor]:
        """The results in float64, by the names that the contenders give theirs."""
        raise NotImplementedError

    def contenders(self, direction: str) -> list[Contender]:
        """Everyone, our own choice first, with whoever is absent."""
        raise NotImplementedError

    def judge(self, results: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Error:
        return judge(results, expected)


class DifferentiableProblem(Problem):
    """An op that autograd differentiates: the directions come from functions of the inputs.

    wanted: the inputs whose gradients are asked for. names: of the outputs. upstream: the gradients
    that arrive at them, or () for a scalar loss.
    """

    wanted: Sequence[str]
    names: Sequence[str]
    upstream: Sequence[Tensor] = ()

    def reference(self, **inputs: Any) -> Any:
        """The op in the plainest way; it is called in float64."""
        raise NotImplementedError

    def functions(self) -> list[Function]:
        """Everyone who brings a function, our own first."""
        raise NotImplementedError

    def others(self, direction: str) -> list[Contender]:
        """Who does a direction without autograd: the C interface, for one."""
        return []

    def filled(self) -> list[Tensor]:
        return [*super().filled(), *self.upstream]

    def expected(self, direction: str) -> dict[str, Tensor]:
        exact = {name: _widened(value) for name, value in self.inputs.items()}
        results: dict[str, Tensor] = {}
        with torch.set_grad_enabled(direction != "forward"):
            outputs = outputs_of(self.reference, exact)
        if direction != "forward":
            gradients = torch.autograd.grad(
                outputs,
                [exact[name] for name in self.wanted],
                [each.double() for each in self.upstream] or None,
            )
            results.update(zip((f"d{name}" for name in self.wanted), gradients, strict=True))
        if direction != "backward":
            results.update(zip(self.names, (o.detach() for o in outputs), strict=True))
        return results

    def contenders(self, direction: str) -> list[Contender]:
        if not hasattr(self, "_functions"):
            self._functions = self.functions()
        directions = Differentiation(self.inputs, self.wanted, self.names, self.upstream)
        found = []
        for function in self._functions:
            contender = directions.contender(function, direction)
            if function.call is not None:
                contender.kept = self._kept(directions, function.call)
            found.append(contender)
        return found + self.others(direction)

    def _kept(self, directions: Differentiation, call: Callable) -> Callable[[], int]:
        return lambda: kept_bytes(lambda: directions.forward(call), self._tensors())

    def _tensors(self) -> list[Tensor]:
        return [t for t in self.inputs.values() if isinstance(t, Tensor)] + list(self.upstream)


def _widened(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


class Entry:
    """A contender as the core calls it (core.Entrant): results kept, inputs put back."""

    def __init__(self, contender: Contender, trial: Trial):
        self.contender, self._trial = contender, trial
        self.provider, self.rung = contender.provider, contender.rung
        self.absent, self.headline = contender.absent, contender.headline
        self.allowance = 1.0 if contender.ours else 4.0
        self._prepared = False

    def call(self) -> None:
        if self.contender.prepare is not None and not self._prepared:
            self.contender.prepare()
        self._prepared = False
        self._trial.results = self.contender.call()
        self._trial.last = self.contender

    def restore(self) -> None:
        # Results are let go here, so that giving their memory back is nobody's time.
        self._trial.results = {}
        self._trial.put_back(self.contender.overwrites)
        if self.contender.prepare is not None:
            self.contender.prepare()
            self._prepared = True


class Trial:
    """One direction of a problem as the core runs it (core.Trial)."""

    def __init__(self, problem: Problem, direction: str):
        self.problem, self.direction = problem, direction
        self.entrants = [Entry(c, self) for c in problem.contenders(direction)]
        self.inputs = [t.detach() for t in problem.filled()]
        self.results: Results = {}
        self.last: Contender | None = None
        self.outputs = [t for entry in self.entrants for t in entry.contender.given]
        self._kept = {
            t.data_ptr(): (t, t.detach().clone())
            for entry in self.entrants
            for t in entry.contender.overwrites
        }
        self._expected: dict[str, Tensor] | None = None

    def fill(self, seed: int) -> None:
        self.results, self._expected = {}, None
        self.problem.fill(seed)
        with torch.no_grad():
            for tensor, copy in self._kept.values():
                copy.copy_(tensor)

    def forget(self) -> None:
        """Lets go of all memory, for entrants and trial know each other and nobody collects."""
        self.entrants, self.outputs = [], []
        self.results, self._kept, self._expected = {}, {}, None

    def tensors(self) -> list[Tensor]:
        """What is there before a call."""
        return [*self.inputs, *self.outputs, *(tensor for tensor, _ in self._kept.values())]

    def put_back_all(self) -> None:
        self.put_back([tensor for tensor, _ in self._kept.values()])

    def put_back(self, tensors: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(self._kept[tensor.data_ptr()][1])

    def poison(self) -> None:
        """Given outputs are NaN, and so is the memory that the allocator is likely to hand out for
        fresh ones: it is taken, spoilt and given back. Inputs are as they were filled."""
        fresh = [(r.shape, r.dtype) for r in self.results.values() if isinstance(r, Tensor)]
        self.results = {}
        self.put_back_all()
        if self._expected is None:
            self._expected = self.problem.expected(self.direction)
        for tensor in self.outputs:
            tensor.fill_(float("nan"))
        spoilt = [
            torch.full(shape, float("nan"), dtype=dtype, device=self.problem.device)
            for shape, dtype in fresh
        ]
        del spoilt

    def check(self) -> Error:
        results = {name: r() if callable(r) else r for name, r in self.results.items()}
        scale = self.last.scale
        expected = {
            name: right * scale[name] if name in scale else right
            for name, right in self._expected.items()
        }
        return self.problem.judge(results, expected)
