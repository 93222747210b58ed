"""Figures beside the core's `ms`, each a clock of its own and never mixed with another in a ratio.

    kernel_ms   what the kernels of one call took, added up by PyTorch's profiler: no gaps, no host
    host_ms     until one call is enqueued on an idle device
    call_ms     of one call in a train: the host's time or the device's, whichever is longer

Like the core they go round everyone in random order, block by block, and ratios are of pairs.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from .core import Run
from .problem import Entry

_KERNEL_BLOCKS, _CALL_BLOCKS = 5, 9
_TRAIN_SECONDS, _TRAIN_CALLS = 2e-3, (3, 30)
_MARK = "ninefold.lab call "
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}

Samples = dict[str, list[list[float]]]  # by figure, a list for each entrant


def take(entrants: Sequence[Entry], seed: int) -> Samples:
    """All figures of CUDA entrants, in ms. What cannot be taken is left out."""
    order = random.Random(seed)
    return {"kernel_ms": _kernels(entrants, order), **_trains(entrants, order)}


def add_to_rows(
    rows: Sequence[dict], entrants: Sequence[Entry], samples: Samples, run: Run
) -> None:
    """Medians into the rows of the entrants, and into our own row the ratio to whoever is fastest
    by that clock."""
    by_label = {(row["provider"], row["rung"]): row for row in rows}
    for figure, taken in samples.items():
        usable = [i for i, values in enumerate(taken) if values]
        for i in usable:
            row = by_label[entrants[i].provider, entrants[i].rung]
            row[figure] = float(f"{median(taken[i]):.5g}")
        own = [i for i in usable if entrants[i].contender.ours and not entrants[i].rung]
        rivals = [i for i in usable if entrants[i].headline and i not in own]
        if not own or not rivals:
            continue
        fastest = min(rivals, key=lambda i: median(taken[i]))
        ratio = run.ratio(taken[fastest], taken[own[0]])
        by_label["ninefold", ""].setdefault("ratios", {})[figure] = {
            "rival": entrants[fastest].contender.label,
            "ratio": [float(f"{value:.5g}") for value in ratio[:3]],
            "verdict": ratio.verdict,
        }


def _blocks(entrants: Sequence[Entry], count: int, order: random.Random):
    indices = list(range(len(entrants)))
    for _ in range(count):
        order.shuffle(indices)
        yield from indices


def _kernels(entrants: Sequence[Entry], order: random.Random) -> list[list[float]]:
    flush = torch.empty(1 << 26, device="cuda")  # 256 MiB: a few times the L2 of any GPU
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True
    ) as profiler:
        for i in _blocks(entrants, _KERNEL_BLOCKS, order):
            entrants[i].restore()
            flush.zero_()
            flush.sum()  # reads, so that no write-back of zeros falls into the call
            torch.cuda.synchronize()
            with record_function(f"{_MARK}{i}"):
                entrants[i].call()
                torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    return kernel_times(events, len(entrants))


def kernel_times(events: Sequence[dict], count: int) -> list[list[float]]:
    """From a trace: for each entrant and call the durations, in ms, of what the device began to do
    in its range. The device is idle at both ends of a range."""
    ranges, work = [], []
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "user_annotation" and name.startswith(_MARK):
            begin = event["ts"]
            ranges.append((begin, begin + event["dur"], int(name.removeprefix(_MARK))))
        elif event.get("cat") in _ON_DEVICE:
            work.append((event["ts"], event["dur"]))
    samples: list[list[float]] = [[] for _ in range(count)]
    for begin, end, entrant in sorted(ranges):
        microseconds = sum(took for at, took in work if begin <= at <= end)
        samples[entrant].append(microseconds / 1e3)
    # A profiler that saw nothing has measured nothing.
    return [values if all(values) else [] for values in samples]


def _trains(entrants: Sequence[Entry], order: random.Random) -> Samples:
    host: list[list[float]] = [[] for _ in entrants]
    call: list[list[float]] = [[] for _ in entrants]
    calls = [_train_length(entry) for entry in entrants]
    for i in _blocks(entrants, _CALL_BLOCKS, order):
        entry, n = entrants[i], calls[i]
        if entry.contender.prepare is not None:
            # What a call uses up is made between the calls, so there is no train of them.
            host[i].append(sum(_alone(entry) for _ in range(n)) / n * 1e3)
            continue
        entry.restore()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            entry.call()
        queued = time.perf_counter()
        torch.cuda.synchronize()
        host[i].append((queued - start) / n * 1e3)
        call[i].append((time.perf_counter() - start) / n * 1e3)
    for entry in entrants:
        entry.restore()
    return {"host_ms": host, "call_ms": call}


def _alone(entry: Entry) -> float:
    entry.restore()
    torch.cuda.synchronize()
    start = time.perf_counter()
    entry.call()
    return time.perf_counter() - start


def _train_length(entry: Entry) -> int:
    low, high = _TRAIN_CALLS
    entry.restore()
    torch.cuda.synchronize()
    start = time.perf_counter()
    entry.call()
    torch.cuda.synchronize()
    return max(low, min(high, int(_TRAIN_SECONDS / (time.perf_counter() - start))))
