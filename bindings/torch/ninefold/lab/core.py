"""libninefold_lab.so as ctypes sees it: the part of lab/lab.h that times whole cases."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..dlpack.view import DLDevice

_DEVICE_TYPES = {"cpu": 1, "cuda": 2}
_OK, _UNSUPPORTED, _RUNTIME_ERROR = 0, 2, 4  # of nf_status


class _Range(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_int64)]


class _RunOptions(ctypes.Structure):
    _fields_ = [
        ("device", DLDevice),
        ("suite", ctypes.c_char_p),
        ("seed", ctypes.c_uint64),
        ("versions", ctypes.c_char_p),
    ]


class _Error(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("rel_l2", "worst", "flushed")]


class _Ratio(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_double) for name in ("low", "middle", "high")),
        ("verdict", ctypes.c_char_p),
    ]


_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Fill = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
_Poison = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Check = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Error))


class _Entrant(ctypes.Structure):
    _fields_ = [
        ("provider", ctypes.c_char_p),
        ("rung", ctypes.c_char_p),
        ("absent", ctypes.c_char_p),
        ("headline", ctypes.c_int),
        ("allowance", ctypes.c_double),
        ("context", ctypes.c_void_p),
        ("call", _Call),
        ("restore", _Call),
    ]


class _Problem(ctypes.Structure):
    _fields_ = [
        ("context", ctypes.c_void_p),
        ("fill", _Fill),
        ("poison", _Poison),
        ("check", _Check),
        ("inputs", ctypes.POINTER(_Range)),
        ("input_count", ctypes.c_int),
        ("outputs", ctypes.POINTER(_Range)),
        ("output_count", ctypes.c_int),
        ("entrants", ctypes.POINTER(_Entrant)),
        ("entrant_count", ctypes.c_int),
    ]


_lab = ctypes.CDLL(str(Path(__file__).parent.parent / "libninefold_lab.so"))


def _declare(name: str, returned: Any, *taken: Any) -> Any:
    function = getattr(_lab, name)
    function.restype, function.argtypes = returned, taken
    return function


_fail = _declare("nf_lab_fail", ctypes.c_int, ctypes.c_int, ctypes.c_char_p)
_last_error = _declare("nf_lab_last_error", ctypes.c_char_p)
_open_run = _declare(
    "nf_lab_open_run", ctypes.c_int, ctypes.POINTER(_RunOptions), ctypes.POINTER(ctypes.c_void_p)
)
_cases = _declare("nf_lab_cases", ctypes.c_char_p, ctypes.c_void_p)
_stream = _declare("nf_lab_stream", ctypes.c_void_p, ctypes.c_void_p)
_run_case = _declare(
    "nf_lab_run_case",
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.POINTER(_Problem),
    ctypes.c_double,
    ctypes.POINTER(ctypes.c_char_p),
)
_close_run = _declare("nf_lab_close_run", None, ctypes.c_void_p)
_ratio = _declare(
    "nf_lab_ratio_of_samples",
    _Ratio,
    ctypes.POINTER(ctypes.c_double),
    ctypes.POINTER(ctypes.c_double),
    ctypes.c_int64,
    ctypes.c_uint64,
)


class Ratio(NamedTuple):
    """A rival's time over ours: the median of paired samples and its 95 % interval."""

    low: float
    middle: float
    high: float
    verdict: str


class Error(NamedTuple):
    """nf_lab_error: how far outputs are from float64."""

    rel_l2: float
    worst: float
    flushed: float


class Entrant(Protocol):
    """nf_lab_entrant. `call` and `restore` raise NotImplementedError for what cannot be done."""

    provider: str
    rung: str
    absent: str
    headline: bool
    allowance: float

    def call(self) -> None: ...

    def restore(self) -> None: ...


class Trial(Protocol):
    """nf_lab_problem."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    entrants: Sequence[Entrant]

    def fill(self, seed: int) -> None: ...

    def poison(self) -> None: ...

    def check(self) -> Error: ...


class Case(NamedTuple):
    """One shape, dtype and direction of lab/shapes.json. kept_bytes: by the op's definition."""

    index: int
    op: str
    direction: str
    dtype: str
    name: str
    sizes: dict[str, int]
    options: dict[str, int]
    kept_bytes: int

    def __str__(self) -> str:
        return f"{self.op} {self.direction} {self.dtype} {self.name}"


class Run:
    """A run on one device: its cases, and the rows of each.

    device: "cpu" or "cuda". suite: of lab/shapes.json. versions: of what is compared with, by name.
    RuntimeError: the device cannot be used, with the lab's sentence.
    """

    def __init__(self, device: str, suite: str, seed: int, versions: dict[str, str]):
        options = _RunOptions(
            DLDevice(_DEVICE_TYPES[device], 0), suite.encode(), seed, json.dumps(versions).encode()
        )
        self.seed = seed
        self._run = ctypes.c_void_p()
        _require(_open_run(options, self._run))
        self.stream: int | None = _stream(self._run)
        self.cases = [
            Case(
                index,
                *(c[k] for k in ("op", "direction", "dtype", "case", "shape", "options")),
                c["kept_bytes"],
            )
            for index, c in enumerate(json.loads(_cases(self._run)))
        ]

    def rows_of(self, case: Case, trial: Trial, max_seconds: float) -> list[dict]:
        """Checks and times the trial's entrants; one row for each, and one for the ceiling."""
        calls = _Callbacks()
        entrants = (_Entrant * len(trial.entrants))(
            *(
                _Entrant(
                    entrant.provider.encode(),
                    entrant.rung.encode(),
                    entrant.absent.encode() or None,
                    entrant.headline,
                    entrant.allowance,
                    None,
                    calls.keep(_Call, entrant.call),
                    calls.keep(_Call, entrant.restore),
                )
                for entrant in trial.entrants
            )
        )
        problem = _Problem(
            None,
            calls.keep(_Fill, lambda seed: trial.fill(seed), arguments=1),
            calls.keep(_Poison, trial.poison),
            calls.keep(_Check, lambda error: _fill_in(error, trial.check()), arguments=1),
            *_ranges(trial.inputs),
            *_ranges(trial.outputs),
            entrants,
            len(entrants),
        )
        rows = ctypes.c_char_p()
        status = _run_case(self._run, case.index, problem, max_seconds, rows)
        if calls.interrupt is not None:
            raise calls.interrupt
        _require(status)
        return [json.loads(line) for line in rows.value.splitlines()]

    def ratio(self, rival: Sequence[float], ours: Sequence[float]) -> Ratio:
        """The paired ratio of samples that were taken in blocks outside of `rows_of`."""
        count = len(ours)
        array = ctypes.c_double * count
        r = _ratio(array(*rival), array(*ours), count, self.seed)
        return Ratio(r.low, r.middle, r.high, r.verdict.decode())

    def close(self) -> None:
        _close_run(self._run)


class _Callbacks:
    """C functions made of Python ones, alive as long as this is. An exception becomes a status;
    one that is meant for the program itself is kept for whoever called into C."""

    def __init__(self) -> None:
        self.interrupt: BaseException | None = None
        self._kept: list[Any] = []

    def keep(self, kind: Any, function: Callable, arguments: int = 0) -> Any:
        def called(_context, *rest):
            try:
                function(*rest[:arguments])
                return _OK
            except Exception as error:
                status = _UNSUPPORTED if isinstance(error, NotImplementedError) else _RUNTIME_ERROR
                return _fail(status, reason_of(error).encode())
            except BaseException as error:
                self.interrupt = error
                return _fail(_RUNTIME_ERROR, b"interrupted")

        self._kept.append(kind(called))
        return self._kept[-1]


def reason_of(error: Exception) -> str:
    """An exception as the one line that a row has room for."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _ranges(tensors: Sequence[Tensor]) -> tuple[Any, int]:
    ranges = [_Range(t.data_ptr(), t.numel() * t.element_size()) for t in tensors]
    return (_Range * len(ranges))(*ranges), len(ranges)


def _fill_in(to: Any, error: Error) -> None:
    to.contents.rel_l2, to.contents.worst, to.contents.flushed = error


def _require(status: int) -> None:
    if status != _OK:
        raise RuntimeError(_last_error().decode())
