"""A training that is taken step by step, and what a step costs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..lab.memory import saved_bytes

Batch = Mapping[str, Any]


class Step(NamedTuple):
    """loss; seconds of the host, with the device waited for; peak bytes beyond what was there
    before, gradients among them, None on CPU where nobody counts."""

    loss: float
    seconds: float
    peak_bytes: int | None


@dataclass(frozen=True)
class Traffic:
    """One operator of Ninefold in one training step.

    calls    how often it is called
    nbytes   what that must move: each input read once, each output written once
    seconds  the time of its kernels; None on CPU, which has none to time apart
    """

    calls: int
    nbytes: int
    seconds: float | None

    def __str__(self) -> str:
        counted = f"{self.calls:5} calls {self.nbytes / 1e6:12.3f} MB"
        if not self.seconds:
            return counted
        speed = self.nbytes / self.seconds / 1e9
        return f"{counted} {1e3 * self.seconds:10.3f} ms {speed:7.0f} GB/s"


class Training:
    """A model, its optimizer and how it is run. A step takes a batch, the keyword arguments of a
    call, and the seed of everything random in it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        compile: bool = False,
        autocast: torch.dtype | None = None,
    ):
        self.model, self.optimizer = model, optimizer
        self.device = next(model.parameters()).device
        self._on_cuda = self.device.type == "cuda"
        self._autocast = autocast
        self._run = torch.compile(model) if compile else model

    def step(self, batch: Batch, seed: int) -> Step:
        """Forward, backward and an update, from gradients that are None to such."""
        if self._on_cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
        start = time.perf_counter()
        loss = self._update(self._run, batch, seed)
        if self._on_cuda:
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated(self.device) - before if self._on_cuda else None
        return Step(loss.item(), seconds, peak)

    def kept_bytes(self, batch: Batch, seed: int) -> int:
        """What a forward keeps for its backward, beyond parameters, buffers and the batch."""
        own = [*self.model.parameters(), *self.model.buffers(), *tree_leaves(dict(batch))]
        known = [t for t in own if isinstance(t, Tensor)]
        return saved_bytes(lambda: self._loss(self._run, batch, seed), known)

    def traffic(self, batch: Batch, seed: int) -> dict[str, Traffic]:
        """Of every operator of Ninefold that a step calls. Takes a step, or two on CUDA."""
        with _Counter() as counted:
            self._update(self.model, batch, seed)  # not compiled: every call is seen
        seconds = dict.fromkeys(counted.nbytes)
        if self._on_cuda:
            events = self.profile(batch, seed).key_averages()
            for name in seconds:
                own = (e for e in events if _operator(e.key) == name)
                seconds[name] = sum(event.self_device_time_total for event in own) * 1e-6
        return {
            name: Traffic(counted.calls[name], counted.nbytes[name], seconds[name])
            for name in seconds
        }

    def profile(self, batch: Batch, seed: int) -> profile:
        """torch.profiler's view of a step."""
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self._on_cuda
        with profile(activities=activities) as profiler:
            self._update(self._run, batch, seed)
            if self._on_cuda:
                torch.cuda.synchronize(self.device)
        return profiler

    def _update(self, run: nn.Module, batch: Batch, seed: int) -> Tensor:
        loss = self._loss(run, batch, seed)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def _loss(self, run: nn.Module, batch: Batch, seed: int) -> Tensor:
        torch.manual_seed(seed)
        enabled = self._autocast is not None
        with torch.autocast(self.device.type, self._autocast, enabled=enabled):
            loss = getattr(run(**batch), "loss", None)
        if loss is None:
            raise ValueError("the model's result has no loss: the batch needs labels")
        return loss


class _Counter(TorchDispatchMode):
    """Counts calls of Ninefold's operators, and the bytes of their tensors."""

    def __init__(self):
        super().__init__()
        self.calls: dict[str, int] = defaultdict(int)
        self.nbytes: dict[str, int] = defaultdict(int)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if name := _operator(function.name()):
            self.calls[name] += 1
            arguments = zip(function._schema.arguments, args, strict=False)
            written = [arg for formal, arg in arguments if formal.is_write]
            leaves = tree_leaves([args, kwargs, written, result])
            self.nbytes[name] += sum(_nbytes(t) for t in leaves if isinstance(t, Tensor))
        return result


def _operator(name: str) -> str | None:
    """rms_norm of ninefold::rms_norm, whichever way the call went; None where it is not ours."""
    namespace, _, operator = name.partition("::")
    return operator if namespace in ("ninefold", "ninefold_no_grad") else None


def _nbytes(tensor: Tensor) -> int:
    """Of what is there: dimensions with stride 0 repeat it."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    count = tensor.element_size()
    for size, stride in sizes:
        count *= size if stride or not size else 1
    return count
