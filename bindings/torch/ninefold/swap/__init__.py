"""Ninefold in a model that is there already: `patch` swaps kernels in, and `ab` measures what that
does to its training."""

from .comparison import Comparison, ab
from .patching import Patch, patch

__all__ = ["Comparison", "Patch", "ab", "patch"]
