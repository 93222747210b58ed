"""What torch must know about an operator besides its kernels, which libninefold_torch.so has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import _C, Tensor
from torch._C import (  # by name: a call passes several of them, and each dot takes time
    _any_requires_grad,
    _are_functorch_transforms_active,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
    is_grad_enabled,
)
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

torch.ops.load_library(Path(__file__).parent.parent / "libninefold_torch.so")
_library = torch.library.Library("ninefold", "IMPL")
_no_grad_library = torch.library.Library("ninefold_no_grad", "IMPL")  # see library.hpp


class Op:
    """`torch.ops.ninefold.<name>` with its fake, autograd and autocast kernels.

    Every operator is registered once, as a module-level constant. The arguments of its schema are
    positional.

    fake(*args)
        The outputs as empty tensors, from shapes, dtypes and devices alone.
    train
        The operator that runs instead where there will be a backward: the same arguments, and after
        the same outputs those that only the backward needs.
    save(ctx, inputs, output)
        Keeps for the backward what `ctx.needs_input_grad` makes it need. `output` has all outputs
        of `train`.
    backward(ctx, *grads)
        The gradients, one per argument of the schema, None where there is none or where
        `ctx.needs_input_grad` does not ask for one. Where there are several outputs, the gradient
        of one that was not used arrives as None. Without `backward` the operator has no derivative:
        asking for one raises RuntimeError, and an in-place operator does so at the call.
    autocast(device, *args)
        The arguments as torch.autocast on "cpu" or "cuda" wants them. Without it they stay as they
        are.

    An object is called like the operator, and finds the cheapest way in. Arguments at the end that
    have their default are better left out: each costs a fifth of a microsecond.
    """

    def __init__(
        self,
        name: str,
        *,
        fake: Callable,
        train: Op | None = None,
        save: Callable | None = None,
        backward: Callable | None = None,
        autocast: Callable | None = None,
    ):
        self._name = name
        self._overload = getattr(torch.ops.ninefold, name).default
        self._no_grad = getattr(torch.ops.ninefold_no_grad, name).default._op
        self._arguments = self._overload._schema.arguments
        self._defaults = tuple(argument.default_value for argument in self._arguments)
        if self._overload._schema.is_mutable:
            self._no_grad = self._overload
            self._gradient = self._refuse_gradient
            self._count_versions()
        else:
            self._gradient = self._make_gradient(train or self, save, backward)
        _library.impl(name, self._autograd_kernel, "Autograd")

        def checked_fake(*args):
            devices = {t.device for t in pytree.tree_leaves(args) if isinstance(t, Tensor)}
            if len(devices) > 1:  # the kernels see to it themselves
                raise RuntimeError(f"{name}: expected tensors of one device, got {devices}")
            return fake(*args)

        for library in (_library, _no_grad_library):
            torch.library.register_fake(f"{library.ns}::{name}", checked_fake, lib=library)
            if autocast is not None:
                _register_autocast(library, name, autocast, self._defaults)

    def __call__(self, *args) -> Any:
        if (
            is_dynamo_compiling()
            or _len_torch_dispatch_stack()
            or _are_functorch_transforms_active()
        ):
            return self._overload(*args)  # everything registered takes part
        try:
            if is_grad_enabled() and _any_requires_grad(*args):
                if _is_any_autocast_enabled():
                    return self._overload(*args)
                return self._gradient(*args, *self._defaults[len(args) :])
            if forward_ad._current_level >= 0:
                return self._overload(*args)
            return self._no_grad(*args)
        except (RuntimeError, ValueError) as error:
            better = self._explain(error, args)
            if better is None:
                raise
            raise better from None

    def _autograd_kernel(self, *args):
        try:
            wanted = is_grad_enabled() and _any_requires_grad(*args)
            if wanted or forward_ad._current_level >= 0:
                if _are_functorch_transforms_active():
                    raise NotImplementedError(
                        f"ninefold::{self._name} has no derivative for torch.func: use autograd"
                    )
                # The dispatcher has left out what equals a default.
                return self._gradient(*args, *self._defaults[len(args) :])
            with _C._AutoDispatchBelowAutograd():
                return self._overload(*args)
        except ValueError as error:
            raise self._explain(error, args) from None

    def _make_gradient(self, run: Op, save: Callable | None, backward: Callable | None):
        name, returns = self._name, self._overload._schema.returns
        outputs = len(returns)
        a_list = str(returns[0].type) == "List[Tensor]"  # whose gradients a Function would not see

        class Gradient(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *args):
                if _len_torch_dispatch_stack():  # traced: into a graph goes the complete name
                    with _C._AutoDispatchBelowAutograd():
                        output = run._overload(*args)
                else:
                    output = run._no_grad(*args)
                if outputs > 1:
                    ctx.set_materialize_grads(False)
                if save is not None:
                    save(ctx, args, output)
                if run is self:
                    return tuple(output) if a_list else output
                return output[0] if outputs == 1 else output[:outputs]

            @staticmethod
            def backward(ctx, *grads):
                if backward is None:
                    raise RuntimeError(
                        f"ninefold::{name} has no derivative: double backward is not supported"
                    )
                return backward(ctx, *grads)

        # Without the two microseconds that Gradient.apply spends on functorch's own protocol.
        apply = super(torch.autograd.Function, Gradient).apply
        return (lambda *args: list(apply(*args))) if a_list else apply

    def _refuse_gradient(self, *args):
        raise RuntimeError(
            f"ninefold::{self._name} has no derivative: call it under torch.no_grad(), or the form "
            "that is not in place"
        )

    def _count_versions(self):
        """Lets autograd notice that the tensors which the operator writes have changed."""
        written = [
            i for i, a in enumerate(self._arguments) if a.alias_info and a.alias_info.is_write
        ]

        def kernel(keyset, *args):
            changed = pytree.tree_leaves([args[i] for i in written if i < len(args)])
            increment_version([t for t in changed if t is not None])
            with _C._AutoDispatchBelowADInplaceOrView():
                return self._overload.redispatch(keyset & _C._after_ADInplaceOrView_keyset, *args)

        _library.impl(self._name, kernel, "ADInplaceOrView", with_keyset=True)

    def _explain(self, error: Exception, args: tuple) -> Exception | None:
        """The exception that torch raises for the same mistake; None where that is `error`."""
        if isinstance(error, ValueError):  # NF_UNSUPPORTED: see check() in tensor.hpp
            return NotImplementedError(error)
        for position, (argument, value) in enumerate(zip(self._arguments, args)):
            expected = _PYTHON_TYPES.get(str(argument.type))
            if expected and not isinstance(value, expected):
                return TypeError(
                    f"{self._name}(): argument '{argument.name}' (position {position + 1}) must be "
                    f"{argument.type}, not {type(value).__name__}"
                )
        if _no_grad_library.ns in str(error):
            return type(error)(str(error).replace(_no_grad_library.ns, _library.ns))
        return None


_NONE = type(None)
_PYTHON_TYPES = {
    "Tensor": Tensor,
    "Optional[Tensor]": (Tensor, _NONE),
    "int": (int, torch.SymInt),
    "float": (float, int, torch.SymFloat, torch.SymInt),
}


def _register_autocast(
    library: torch.library.Library, name: str, autocast: Callable, defaults: tuple
):
    overload = getattr(getattr(torch.ops, library.ns), name).default
    for device in ("cpu", "cuda"):
        key = f"Autocast{device.upper()}"
        excluded = _C.DispatchKeySet(getattr(_C.DispatchKey, key))

        def kernel(*args, device=device, excluded=excluded):
            args = autocast(device, *args, *defaults[len(args) :])
            with _C._ExcludeDispatchKeyGuard(excluded):
                return overload(*args)

        library.impl(name, kernel, key)
