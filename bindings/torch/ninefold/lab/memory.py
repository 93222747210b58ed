"""What a call takes and what a forward keeps, by the allocator that PyTorch uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class _Gauge(NamedTuple):
    peak: int
    left: int


def peak_bytes(call: Callable[[], Iterable[Tensor]], before: Sequence[Tensor]) -> int:
    """The most that one call takes at any time, without its inputs and the outputs it returns.

    before: tensors that were there, and that an output may lie over.
    """
    device = before[0].device
    results: list[Tensor] = []

    def keeping():
        results.extend(call())

    gauge = _measured(keeping, device)
    known = {_storage(t) for t in before}
    fresh = {_storage(t): t.untyped_storage().nbytes() for t in results}
    return max(0, gauge.peak - sum(size for at, size in fresh.items() if at not in known))


def kept_bytes(forward: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> int:
    """What must live from a forward to its backward beyond the inputs.

    Asked twice: autograd, which tensors it was given to save, and the allocator, what is still
    taken when the graph is all that is left. A function that keeps tensors to itself shows in the
    second alone, memory that is not the allocator's in the first alone; the larger counts.
    """
    forward()  # whoever compiles or caches something at the first call has done so
    saved = saved_bytes(forward, inputs)
    graph: list = []

    def only_graph():
        graph.extend(output.grad_fn for output in forward())

    return max(saved, _measured(only_graph, inputs[0].device).left)


def saved_bytes(forward: Callable[[], Any], known: Iterable[Tensor]) -> int:
    """Of the tensors that autograd is given to save in a forward, but for `known`: memory that is
    shared counts once."""
    known = {_storage(t) for t in known}
    saved: dict[int, int] = {}

    def packed(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in known:
            saved[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(packed, lambda tensor: tensor):
        result = forward()  # alive, so no memory is used twice
    del result
    return sum(saved.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _measured(work: Callable[[], None], device: torch.device) -> _Gauge:
    return _on_cuda(work) if device.type == "cuda" else _on_cpu(work)


def _on_cuda(work: Callable[[], None]) -> _Gauge:
    torch.cuda.synchronize()
    # What was asked for, not the blocks that it was rounded up to.
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    return _Gauge(
        after["requested_bytes.all.peak"] - before, after["requested_bytes.all.current"] - before
    )


def _on_cpu(work: Callable[[], None]) -> _Gauge:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True,
        acc_events=True,  # without it PyTorch warns about cycles, of which there is one
    ) as profile:
        work()
    taken = highest = 0
    events = profile.profiler.kineto_results.events()
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            taken += event.nbytes()
            highest = max(highest, taken)
    return _Gauge(highest, taken)
