"""What a swap is, and how a live object is given another function without its class knowing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

from .recognise import unknown

Replace = Callable[[FunctionType], Callable]  # of a forward within its decorators, makes another


@dataclass(frozen=True)
class Swap:
    """Another forward for every module of some classes.

    op        the name that patch's `ops` has for it
    classes   whose forward is known here
    replace   makes the new forward
    children  submodules to swap in the same breath, by name
    check     raises NotImplementedError where this version of transformers has another forward
    refusal   the reason to keep a module as it is, from its name and itself; or None
    """

    op: str
    classes: tuple[type[nn.Module], ...]
    replace: Replace
    children: Mapping[str, Swap] = field(default_factory=dict)
    check: Callable[[], None] = lambda: None
    refusal: Callable[[str, nn.Module], str | None] = lambda name, module: None

    def overrides(self, name: str, module: nn.Module) -> list[Override]:
        """What swaps one module, not yet set. Raises Kept where the module must stay as it is."""
        if reason := self.refusal(name, module):
            raise Kept(reason)
        forward = type(module).forward
        if inspect.unwrap(forward) not in [inspect.unwrap(c.forward) for c in self.classes]:
            raise Kept(f"{type(module).__name__} has a forward of its own")
        method = MethodType(within_decorators(forward, self.replace), module)
        overrides = [Override(module, "forward", method)]
        for child, swap in self.children.items():
            overrides += swap.overrides(f"{name}.{child}", getattr(module, child))
        return overrides


@dataclass(frozen=True)
class LossSwap:
    """Another loss for models of some classes, whose forward asks the property loss_function."""

    op: str
    classes: tuple[type[nn.Module], ...]
    loss: Callable
    check: Callable[[], None]
    known: Callable  # the loss that it takes the place of

    def overrides(self, name: str, module: nn.Module) -> list[Override]:
        loss = module.loss_function
        if loss is not self.known:
            raise Kept(f"its loss is {getattr(loss, '__name__', loss)}")
        return [Override(module, "_loss_function", self.loss)]


class Kept(Exception):
    """The reason why a module is not swapped."""


@dataclass(frozen=True, eq=False)
class Override:
    """An attribute of a live object that hides what its class has under that name."""

    owner: nn.Module
    attribute: str
    value: Any

    def __post_init__(self):
        if self.attribute in vars(self.owner):
            raise Kept(f"{self.attribute} of its {type(self.owner).__name__} was replaced before")

    def is_set(self) -> bool:
        return vars(self.owner).get(self.attribute) is self.value

    def set(self) -> None:
        setattr(self.owner, self.attribute, self.value)

    def unset(self) -> None:
        delattr(self.owner, self.attribute)


def instead(forward: Callable) -> Replace:
    """Gives `forward`, whatever was there."""
    return lambda _: forward


def with_globals(**names: Any) -> Replace:
    """Copies what was there, with other values for these global names."""

    def replace(function: FunctionType) -> FunctionType:
        namespace = {**function.__globals__, **names}
        # With a __name__, torch.compile would look the names up in the module that is called so.
        del namespace["__name__"]
        return _copy(function, namespace, function.__closure__)

    return replace


def within_decorators(function: Callable, replace: Replace) -> Callable:
    """`replace(innermost)` in copies of the decorators of `function`, which stays as it is."""
    inner = getattr(function, "__wrapped__", None)
    if inner is None:
        return replace(function)
    cells = getattr(function, "__closure__", None) or ()
    if not any(cell.cell_contents is inner for cell in cells):
        raise unknown(function, "has a decorator that cannot be copied")
    replaced = within_decorators(inner, replace)
    cells = tuple(CellType(replaced) if cell.cell_contents is inner else cell for cell in cells)
    return _copy(function, function.__globals__, cells)


def _copy(function: FunctionType, namespace: dict, closure: tuple | None) -> FunctionType:
    copy = FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, closure
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
