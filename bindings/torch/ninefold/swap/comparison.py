"""One hotspot swapped and everything else the same: what that does to time, memory and the loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from .patching import patch
from .timing import Spread, spread, verdict
from .training import Batch, Step, Traffic, Training

T = TypeVar("T")


class Pair(NamedTuple):
    """Of the model as it was, and of the swapped one."""

    without: Any
    swapped: Any


@dataclass(frozen=True)
class Comparison:
    """What `ab` measured. `print` it to read it.

    title       the model, the device and how it was run
    swap        what the swap says of itself
    first       the first Step of each: where anything compiles, it does so there
    steps       the timed Steps of each
    kept_bytes  of each, from forward to backward
    traffic     of the swapped model, a Traffic by operator
    """

    title: str
    swap: str
    first: Pair
    steps: Pair
    kept_bytes: Pair
    traffic: dict[str, Traffic]

    @property
    def ratio(self) -> Spread:
        """Of the times, without over swapped, step by step: above 1 the swap is faster."""
        return spread([a.seconds / b.seconds for a, b in zip(*self.steps, strict=True)])

    @property
    def loss_differences(self) -> list[float]:
        """Of each step, relative to the loss without the swap."""
        pairs = [(a.loss, b.loss) for a, b in zip(*self.steps, strict=True)]
        return [abs(a - b) / max(abs(a), 1e-30) for a, b in pairs]

    def __str__(self) -> str:
        worst = max(self.loss_differences)
        at = self.loss_differences.index(worst)
        rows = {
            "": ("without", "swapped"),
            "step, ms": [f"{spread([1e3 * s.seconds for s in steps]):.3f}" for steps in self.steps],
            "first step, ms": [f"{1e3 * step.seconds:.3f}" for step in self.first],
            "peak memory, MiB": [_peak(steps) for steps in self.steps],
            "kept for backward, MiB": [f"{count / 2**20:.2f}" for count in self.kept_bytes],
            "last loss": [f"{steps[-1].loss:.6f}" for steps in self.steps],
        }
        lines = [f"ninefold.ab: {self.title}", self.swap]
        lines += [f"  {name:24}{a:>28}{b:>28}" for name, (a, b) in rows.items()]
        lines += [
            f"  time without / swapped: {self.ratio:.3f}, {verdict(self.ratio)} for the swap",
            f"  largest relative difference of the losses: {worst:.2e}, at timed step {at}",
        ]
        lines += [f"  {name:28}{one}" for name, one in self.traffic.items()]
        if any(one.seconds is None for one in self.traffic.values()):
            lines.append("  (kernels are not timed on CPU, so there is no bandwidth)")
        return "\n".join(lines)

    __repr__ = __str__


def _peak(steps: list[Step]) -> str:
    if steps[0].peak_bytes is None:
        return "not measured on CPU"
    return f"{max(step.peak_bytes for step in steps) / 2**20:.1f}"


def ab(
    model: nn.Module,
    batch: Batch | Sequence[Batch],
    *,
    swap: str | Collection[str] | Callable[[nn.Module], Any] | None = None,
    steps: int = 20,
    warmup: int = 3,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = torch.optim.AdamW,
    compile: bool = False,
    autocast: torch.dtype | None = None,
    seed: int = 0,
) -> Comparison:
    """Trains a model with and without a swap, prints what differs, and returns it.

    model      is copied twice and stays as it is: three of it, and two optimizers, must fit
    batch      the keyword arguments of a call, with labels, so that the result has a `loss`; or
               several of these, for the steps to take in turn
    swap       the `ops` of `patch`, or a function that changes the model it is given; everything
               that `patch` can swap where not given
    steps      are timed after `warmup` others, at least one of each. In every step both models see
               the same batch and seed, one model after the other, in an order that alternates
    optimizer  a function of the parameters, such as `partial(torch.optim.SGD, lr=0.1)`
    compile    runs both under torch.compile
    autocast   the dtype of a torch.autocast around forward and loss

    The two trainings part ways with the first rounding, so the losses differ as they would in use.
    They do not compare where the swap draws random numbers of its own, as dropout does.

    Raises ValueError where there is no step or no loss, and what `patch` raises.
    """
    if steps < 1 or warmup < 1:
        raise ValueError(f"expected at least one step and one of warm-up, got {steps} and {warmup}")
    batches = [batch] if isinstance(batch, Mapping) else list(batch)
    copies = Pair(deepcopy(model), deepcopy(model))
    made = swap(copies.swapped) if callable(swap) else patch(copies.swapped, ops=swap)
    runs = [
        Training(copy, optimizer(copy.parameters()), compile=compile, autocast=autocast)
        for copy in copies
    ]
    device = runs[0].device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        taken: Pair = Pair([], [])
        for step in range(warmup + steps):
            order = [0, 1] if step % 2 == 0 else [1, 0]
            for side in order:
                taken[side].append(runs[side].step(batches[step % len(batches)], seed + step))
        last = batches[step % len(batches)], seed + step
        result = Comparison(
            title=_title(model, device, compile, autocast),
            swap=str(made) if made is not None else getattr(swap, "__name__", str(swap)),
            first=Pair(*(steps[0] for steps in taken)),
            steps=Pair(*(steps[warmup:] for steps in taken)),
            kept_bytes=Pair(*(run.kept_bytes(*last) for run in runs)),
            traffic=runs[1].traffic(*last),
        )
    print(result)
    return result


def _title(
    model: nn.Module, device: torch.device, compile: bool, autocast: torch.dtype | None
) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    dtypes = {str(p.dtype).removeprefix("torch.") for p in model.parameters()}
    how = ["compiled" if compile else "eager"] + [f"autocast {autocast}"] * (autocast is not None)
    return f"{type(model).__name__} in {', '.join(sorted(dtypes))} on {name}, {', '.join(how)}"
