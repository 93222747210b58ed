"""What a call through torch costs the host: `python -m ninefold.lab.host_time`.

Times our functions beside the matching ATen operators on a tensor so small that hardly anything but
dispatch is left. The two take turns in blocks of calls; a ratio is the median of the blocks'
ratios, with the quartiles beside it. On CPU it is the calling thread's own time, so that a busy
machine disturbs it less; on CUDA, where a backward runs on another thread, it is wall time: let
nothing else run.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

import ninefold

Call = Callable[[], object]


def cases(device: str) -> Iterator[tuple[str, Callable, Callable, list[torch.Tensor]]]:
    """A name, our function, torch's, and the tensors that both take, whose gradients are wanted."""

    def tensor(*shape):
        return torch.randn(*shape, device=device)

    x, weight, bias = tensor(4, 16), tensor(16), tensor(16)
    target = torch.randint(16, (4,), device=device)
    yield "softmax", lambda x: ninefold.softmax(x, -1), lambda x: torch.softmax(x, -1), [x]
    yield (
        "log_softmax",
        lambda x: ninefold.log_softmax(x, -1),
        lambda x: torch.log_softmax(x, -1),
        [x],
    )
    yield (
        "layer_norm",
        lambda x, w, b: ninefold.layer_norm(x, (16,), w, b),
        lambda x, w, b: F.layer_norm(x, (16,), w, b),
        [x, weight, bias],
    )
    yield (
        "rms_norm",
        lambda x, w: ninefold.rms_norm(x, (16,), w, 1e-6),
        lambda x, w: F.rms_norm(x, (16,), w, 1e-6),
        [x, weight],
    )
    yield "gelu", ninefold.gelu, F.gelu, [x]
    yield "silu", ninefold.silu, F.silu, [x]
    yield "dropout", lambda x: ninefold.dropout(x, 0.1), lambda x: F.dropout(x, 0.1), [x]
    yield (
        "cross_entropy",
        lambda x: ninefold.cross_entropy(x, target),
        lambda x: F.cross_entropy(x, target),
        [x],
    )


MODES = {  # name: a context, whether gradients are wanted, whether they are computed
    "inference_mode": (torch.inference_mode, False, False),
    "no_grad": (torch.no_grad, True, False),
    "grad mode, none wanted": (contextlib.nullcontext, False, False),
    "forward, gradient wanted": (contextlib.nullcontext, True, False),
    "forward and backward": (contextlib.nullcontext, True, True),
}


def prepared(function: Callable, tensors: list[torch.Tensor], wanted: bool, backward: bool) -> Call:
    tensors = [tensor.clone().requires_grad_(wanted) for tensor in tensors]
    if not backward:
        return lambda: function(*tensors)
    upstream = torch.ones_like(function(*tensors))
    return lambda: torch.autograd.grad(function(*tensors), tensors, upstream)


def block(call: Call, calls: int, on_cuda: bool) -> float:
    """Microseconds a call. Few enough calls that no launch waits for the device's queue."""
    clock = time.perf_counter_ns if on_cuda else time.thread_time_ns
    begin = clock()
    for _ in range(calls):
        call()
    end = clock()
    if on_cuda:
        torch.cuda.synchronize()
    return (end - begin) / calls / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ninefold.lab.host_time", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--op", help="only this one")
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--calls", type=int, default=200, help="in a block")
    options = parser.parse_args()
    on_cuda = torch.device(options.device).type == "cuda"
    torch.set_num_threads(1)
    gc.disable()

    print(f"{'op':14} {'mode':26} {'ninefold us':>11} {'ATen us':>8} {'ours/ATen':>9}  quartiles")
    for name, ours, theirs, tensors in cases(options.device):
        if options.op not in (None, name):
            continue
        for mode, (context, wanted, backward) in MODES.items():
            with context():
                calls = [prepared(f, tensors, wanted, backward) for f in (ours, theirs)]
                for call in calls:
                    block(call, 2 * options.calls, on_cuda)  # warm
                blocks = [
                    [block(call, options.calls, on_cuda) for call in calls]
                    for _ in range(options.blocks)
                ]
            gc.collect()
            low, middle, high = statistics.quantiles([a / b for a, b in blocks], n=4)
            ours_us, aten_us = (statistics.median(side) for side in zip(*blocks))
            print(
                f"{name:14} {mode:26} {ours_us:11.2f} {aten_us:8.2f} {middle:9.2f}"
                f"  {low:.2f}-{high:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
