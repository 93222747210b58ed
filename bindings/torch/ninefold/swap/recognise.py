"""Whether transformers computes what the swaps take the place of.

Versions are told apart by what their code is and does, not by their number: releases come weekly,
and leave these few functions alone for years.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch


def check_parameters(function: Callable, *expected: str) -> None:
    """That `function` takes these parameters, in this order."""
    found = tuple(inspect.signature(function).parameters)
    if found != expected:
        raise unknown(function, f"takes ({', '.join(found)}), not ({', '.join(expected)})")


def check_names(function: Callable, *expected: str) -> None:
    """That these attributes and globals are what the body of `function` uses, in this order."""
    found = inspect.unwrap(function).__code__.co_names
    if found != expected:
        raise unknown(function, f"uses {', '.join(found)}, not {', '.join(expected)}")


def check_uses(function: Callable, name: str) -> None:
    """That the body of `function` uses this attribute or global."""
    if name not in inspect.unwrap(function).__code__.co_names:
        raise unknown(function, f"does not use {name}")


def check_results(theirs: Callable, ours: Callable, *args, **kwargs) -> None:
    """That both give the same numbers for these arguments: CPU tensors in fp32."""
    with torch.no_grad():
        try:
            torch.testing.assert_close(
                ours(*args, **kwargs), theirs(*args, **kwargs), rtol=1e-4, atol=1e-5
            )
        except AssertionError as difference:
            raise unknown(theirs, f"computes something else: {difference}") from None


def unknown(function: Callable, what: str) -> NotImplementedError:
    from transformers import __version__

    function = inspect.unwrap(function)
    return NotImplementedError(
        f"ninefold.patch does not know transformers {__version__}: "
        f"{function.__module__}.{function.__qualname__} {what}"
    )
