"""One case from inputs to rows: the core's figures, and beside them memory and the other clocks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from . import clocks
from .contender import Contender
from .core import Case, Error, Run, reason_of
from .memory import peak_bytes
from .problem import Entry, Problem, Trial
from .problems import problem_of


class CaseRunner:
    """Runs cases one after the other; those of one shape and dtype share a problem.

    each: seconds of sampling. without: parts of the names of contenders that are left out.
    """

    def __init__(self, run: Run, device: str, each: float, without: Sequence[str] = ()):
        self.run, self.device, self.each, self.without = run, device, each, without
        self._problem: Problem | None = None
        self._key: tuple = ()
        self._first_calls: dict[str, float] = {}

    def rows_of(self, case: Case) -> list[dict]:
        """One row for each contender and for the ceiling. What fails is a row with its reason."""
        try:
            trial = Trial(self._problem_of(case), case.direction)
        except Exception as error:  # no memory for its inputs, or a shape that nobody here takes
            self.forget()
            return self.run.rows_of(case, Excused(reason_of(error)), self.each)
        for entry in trial.entrants:
            if any(part in entry.contender.label for part in self.without):
                entry.absent = "left out of this run"
        rows = self.run.rows_of(case, trial, self.each)
        measured = {(r["provider"], r["rung"]): r for r in rows if r["check"] == "passed"}
        entrants = [e for e in trial.entrants if (e.provider, e.rung) in measured]
        for entry in entrants:
            row = measured[entry.provider, entry.rung]
            self._add_memory(row, entry, trial)
            self._add_compile_time(row, case)
        if self.device == "cuda" and entrants:
            self._attempt(
                lambda: clocks.add_to_rows(
                    rows, entrants, clocks.take(entrants, self.run.seed), self.run
                )
            )
        trial.forget()
        return rows

    def forget(self) -> None:
        """Gives back the problem's memory, and what was compiled for it."""
        self._problem, self._key, self._first_calls = None, (), {}
        torch.compiler.reset()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _problem_of(self, case: Case) -> Problem:
        key = case.op, case.name, case.dtype, tuple(case.sizes.items())
        if key != self._key:
            self.forget()
            self._problem, self._key = problem_of(case, self.device), key
        self._problem.case = case  # the same but for its direction
        return self._problem

    def _add_memory(self, row: dict, entry: Entry, trial: Trial) -> None:
        def call() -> list[Tensor]:
            entry.call()
            return [r for r in trial.results.values() if isinstance(r, Tensor)]

        def measured() -> None:
            entry.restore()
            row["workspace_bytes"] = entry.contender.workspace_bytes
            row["peak_bytes"] = row["workspace_bytes"] + peak_bytes(call, trial.tensors())
            entry.restore()
            # A forward alone runs without a graph, and keeps nothing.
            row["kept_bytes"] = 0 if trial.direction == "forward" else entry.contender.kept()
            trial.put_back_all()

        row["peak_bytes"] = None  # what the lab's own gauge saw was the allocator's pool
        self._attempt(measured)

    def _add_compile_time(self, row: dict, case: Case) -> None:
        """Backward and both run through one compiled graph: who comes second has not waited for
        it, and says what the first one did."""
        if case.direction == "forward" or not row["rung"].startswith("compile"):
            return
        longest = max(row["first_call_ms"], self._first_calls.get(row["rung"], 0.0))
        row["first_call_ms"] = self._first_calls[row["rung"]] = longest

    def _attempt(self, work: Callable[[], None]) -> None:
        """What cannot be taken is missing in the row, and does not cost the row."""
        try:
            work()
        except Exception as error:
            print(f"ninefold.lab: {reason_of(error)}", file=sys.stderr)


class Excused:
    """A case that could not be set up, as a trial whose only entrant is absent."""

    inputs: Sequence[Tensor] = ()
    outputs: Sequence[Tensor] = ()

    def __init__(self, reason: str):
        self.entrants = [Entry(Contender("ninefold", absent=reason), None)]

    def fill(self, seed: int) -> None:
        pass

    def poison(self) -> None:
        pass

    def check(self) -> Error:
        raise AssertionError("nobody was called")
