"""The libraries that we are compared with: found or excused, and torch.compile's modes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .contender import Contender, Function
from .core import reason_of

# As bindings/torch/rivals/requirements.txt installs them.
PACKAGES = {
    "Liger": "liger-kernel",
    "QuACK": "quack-kernels",
    "Apple CCE": "cut-cross-entropy",
    "Triton": "triton",
}

PYTORCH = f"PyTorch {torch.__version__.partition('+')[0]}"


@cache
def provider(name: str) -> str:
    """A library's name and version, or its name where it is not installed."""
    try:
        return f"{name} {version(PACKAGES[name])}"
    except PackageNotFoundError:
        return name


def versions() -> dict[str, str]:
    """What goes into a row's fingerprint."""
    found = {"PyTorch": torch.__version__}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


@cache
def missing(name: str, module: str, device: str) -> str:
    """Why a module of a library cannot be used on a device, or ""."""
    try:
        version(PACKAGES[name])
    except PackageNotFoundError:
        return "not installed; bindings/torch/rivals/README.md says how"
    if device == "cpu":
        return "has kernels for GPUs only"
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a library does when it does not like the machine
        return f"cannot be imported: {reason_of(error)}"
    return ""


def rival(
    name: str,
    module: str,
    device: str,
    call: Callable[[Any], Callable[..., Any]],
    rung: str = "",
    **facts: Any,
) -> Function:
    """The function that `call` makes of a library's module, or its absence."""
    why = missing(name, module, device)
    if why:
        return Function(provider(name), rung, absent=why)
    return Function(provider(name), rung, call(importlib.import_module(module)), **facts)


def without(name: str, why: str) -> Function:
    """A library that has no such op."""
    return Function(provider(name), absent=why)


def contender_of(
    name: str,
    module: str,
    device: str,
    make: Callable[[Any, Callable[..., Contender]], Contender],
    rung: str = "",
) -> Contender:
    """The same for what autograd does not call: `make` gets the module."""
    why = missing(name, module, device)
    if why:
        return Contender(provider(name), rung, absent=why)
    return make(importlib.import_module(module))


def eager_and_compiled(call: Callable[..., Any], device: str) -> list[Function]:
    """PyTorch's own: the fused ATen op, and what torch.compile makes of the same function."""
    made = [Function(PYTORCH, rung, fused) for rung, fused in compiled(call, device)]
    return [Function(PYTORCH, "eager", call), *made]


_MODES = {"compile": "default", "compile max-autotune": "max-autotune-no-cudagraphs"}


def compiled(call: Callable, device: str) -> list[tuple[str, Callable]]:
    """torch.compile of a function in the modes that differ on the device, not compiled yet."""
    modes = _MODES if device == "cuda" else {"compile": "default"}  # max-autotune is for GPUs
    return [
        (rung, torch.compile(call, fullgraph=True, dynamic=False, mode=mode))
        for rung, mode in modes.items()
    ]
