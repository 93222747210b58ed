"""Ninefold's fused transformer kernels for PyTorch.

The functions are named after torch's own, take the same arguments and give the same results; what
they add is keyword-only. They live in `ninefold.ops`, whose import registers `torch.ops.ninefold`
and which is loaded on first use: `ninefold.dlpack` needs no torch and works where there is none.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ops import *  # noqa: F403
    from .swap import *  # noqa: F403

_MODULES = ("dlpack", "lab", "ops", "swap")
_OF_SWAP = ("Comparison", "Patch", "ab", "patch")  # all other names are of ops


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    module = ".swap" if name in _OF_SWAP else ".ops"
    value = getattr(importlib.import_module(module, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_MODULES, *_OF_SWAP, *importlib.import_module(".ops", __name__).__all__})
