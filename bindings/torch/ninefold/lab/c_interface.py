"""Our ops through their C interface: a call whose args were made once."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..dlpack.library import FUNCTIONS, HEADERS, check
from ..dlpack.view import DLTensor, View
from .contender import Contender, Results
from .problem import Problem

# Beside our own choice through torch: the same kernels without torch's dispatch and autograd, into
# outputs that the caller owns. Not the rival of a ratio, nor its subject.
RUNG = "c_interface"


class Call:
    """`Call("nf_softmax_forward", x=x, y=y, log=1)()`: fields of the args by name, tensors as torch
    has them. A workspace that is needed is made here."""

    def __init__(self, function: str, **fields: Any):
        self._function = FUNCTIONS[function]
        self._args = HEADERS.functions[function][1][0]._type_()
        self._kept: list[Any] = []
        self._fill(self._args, fields)
        size_of = re.sub("_(forward_backward|forward|backward|step)$", "_workspace_size", function)
        self.workspace: Tensor | None = None
        if size_of in FUNCTIONS:
            size = ctypes.c_int64()
            check(FUNCTIONS[size_of](self._args, size))
            if size.value:
                device = next(v for v in self._kept if isinstance(v, View)).array.device
                self.workspace = torch.empty(size.value, dtype=torch.uint8, device=device)
                self._fill(self._args, {"workspace": self.workspace})

    def __call__(self, stream: int | None) -> None:
        check(self._function(self._args, stream))

    def _fill(self, args: Any, fields: Mapping[str, Any]) -> None:
        kinds = dict(args._fields_)
        for name, value in fields.items():
            setattr(args, name, self._passed(kinds[name], value))

    def _passed(self, kind: Any, value: Any) -> Any:
        if isinstance(value, Tensor):
            view = self._keep(View(value.detach(), -1 if value.is_cuda else None))
            pointer = ctypes.pointer(view.tensor)
            return pointer if kind is ctypes.POINTER(DLTensor) else kind(pointer)
        if isinstance(value, Mapping):
            part = kind()
            self._fill(part, value)
            return part
        if isinstance(value, Sequence):
            parts = self._keep((kind._type_ * len(value))())
            for part, item in zip(parts, value, strict=True):
                self._fill(part, item)
            return parts
        return value

    def _keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value


def contender(
    problem: Problem,
    calls: Sequence[Call],
    results: Results,
    *,
    before: Sequence[Call] = (),
    overwrites: Sequence[Tensor] = (),
    rung: str = RUNG,
) -> Contender:
    """One or more calls, one after the other, as a contender.

    before: what has to be called first, outside of the clock. results: of the calls, all of them in
    memory that the caller owns.
    """

    def run(these: Sequence[Call]) -> None:
        stream = _stream_of(problem)
        for each in these:
            each(stream)

    def call() -> Results:
        run(calls)
        return results

    inputs = {t.data_ptr() for t in problem.filled()}
    return Contender(
        "ninefold",
        rung,
        call,
        prepare=(lambda: run(before)) if before else None,
        overwrites=overwrites,
        given=[t for t in results.values() if t.data_ptr() not in inputs],
        kept=lambda: problem.case.kept_bytes,
        workspace_bytes=sum(c.workspace.nbytes for c in calls if c.workspace is not None),
        headline=not rung,
    )


def _stream_of(problem: Problem) -> int | None:
    return torch.cuda.current_stream().cuda_stream if problem.device.type == "cuda" else None


def tried(make: Callable[[], Contender], rung: str = RUNG) -> Contender:
    """What `make` makes, or its absence: an op that refuses a case must not cost it its rivals."""
    try:
        return make()
    except Exception as error:
        return Contender(
            "ninefold", rung, absent=f"{type(error).__name__}: {error}", headline=False
        )
