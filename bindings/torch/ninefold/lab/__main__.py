"""python -m ninefold.lab: every case of a suite on one device, rows as they come."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from .case import CaseRunner
from .core import Case, Run
from .problems import PROBLEMS
from .rivals import versions

_DIRECTIONS = ("forward", "backward", "forward_backward")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parsed(arguments)
    deadline = time.monotonic() + options.seconds
    run = Run(options.device, options.suite, options.seed, versions())
    runner = CaseRunner(run, options.device, options.each, tuple(options.without or ()))
    cases = [case for group in _groups(run.cases, options) for case in group]
    failed = False
    gc.disable()  # no sample shall hold a collection
    try:
        with _stream_of(run), _writing(options.out) as write:
            for number, case in list(enumerate(cases))[options.start :]:
                if time.monotonic() > deadline:
                    _say(f"time is over; the next run begins with --start {number}")
                    break
                _say(f"[{number + 1}/{len(cases)}] {case}")
                for row in runner.rows_of(case):
                    write(row)
                    _show(row)
                    failed |= row["provider"] == "ninefold" and row["check"] == "failed"
            runner.forget()
    finally:
        gc.enable()
        run.close()
    return int(failed)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ninefold.lab",
        description="Check and time Ninefold's ops against PyTorch's, Liger's and QuACK's.",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--op", action="append", choices=tuple(PROBLEMS), help="default: all")
    parser.add_argument("--case", action="append", help="a shape's name; default: all")
    parser.add_argument("--dtype", action="append", help="fp32, fp16, bf16; default: all")
    parser.add_argument("--direction", action="append", choices=_DIRECTIONS, help="default: all")
    parser.add_argument("--suite", default="rivals", help="of lab/shapes.json (default: rivals)")
    parser.add_argument(
        "--without",
        action="append",
        metavar="NAME",
        help="leave out contenders whose name holds this; their rows say so",
    )
    parser.add_argument("--quick", action="store_true", help="the first shape of each op only")
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        metavar="S",
        help="begin no case after this time",
    )
    parser.add_argument(
        "--start", type=int, default=0, metavar="N", help="leave out the first N of these cases"
    )
    parser.add_argument(
        "--each",
        type=float,
        default=0.0,
        metavar="S",
        help="sampling time of a case (default: 0.75 on a GPU, 2.5 on a CPU)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of data and order (default 1)")
    parser.add_argument(
        "--out", metavar="FILE", help="append the rows here, one JSON object a line"
    )
    options = parser.parse_args(arguments)
    options.each = options.each or (0.75 if options.device == "cuda" else 2.5)
    return options


def _groups(cases: Sequence[Case], options: argparse.Namespace) -> list[list[Case]]:
    """The chosen cases, those together that share inputs and compiled functions. All ops have
    their first shape before one has its second, and an op's shapes come in thirds, so that a run
    that is cut short has a bit of everything."""
    by_op: dict[str, dict[tuple, list[Case]]] = {op: {} for op in options.op or PROBLEMS}
    for case in cases:
        chosen = (
            (not options.case or case.name in options.case)
            and (not options.dtype or case.dtype in options.dtype)
            and (not options.direction or case.direction in options.direction)
        )
        if chosen and case.op in by_op:
            key = case.name, case.dtype, *case.sizes.items()
            by_op[case.op].setdefault(key, []).append(case)
    lists = [
        [group for third in range(3) for group in list(groups.values())[third::3]]
        for groups in by_op.values()
    ]
    turns = 1 if options.quick else max(map(len, lists), default=0)
    return [groups[turn] for turn in range(turns) for groups in lists if turn < len(groups)]


def _stream_of(run: Run) -> AbstractContextManager:
    if run.stream is None:
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(run.stream))


@contextmanager
def _writing(path: str | None) -> Iterator[Callable[[dict], None]]:
    """What puts each row into the file before the next is measured."""
    if path is None:
        yield lambda row: None
        return
    with open(path, "a") as file:

        def write(row: dict) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        yield write


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(row: dict) -> None:
    name = f"{row['provider']} {row['rung']}".rstrip()
    line = f"  {name[:40]:40}"
    if row["ms"] is None:
        print(f"{line} {row['check']}: {row['reason']}", flush=True)
        return
    line += f" {row['ms']:9.4g} ms {row['gbps']:8.1f} GB/s"
    for figure in ("kernel_ms", "host_ms", "call_ms"):
        if row.get(figure) is not None:
            line += f"  {figure[:-3]} {row[figure]:.4g}"
    if row["error"] is not None:
        line += f"  error {row['error']:.1e}"
    if row["ratio"]:
        low, middle, high = row["ratio"]
        line += f"  {row['verdict']} {middle:.2f} [{low:.2f} {high:.2f}] against {row['rival']}"
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
