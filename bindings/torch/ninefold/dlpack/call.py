"""One call of the C library: Python's arguments into its struct, and the memory that it needs.

The struct's own field types say how an argument is passed on, so no op is described here.
"""

from __future__ import annotations

import ctypes
import numbers
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any, Callable, Union

from .headers import Enum
from .library import FUNCTIONS, HEADERS, InvalidArgument, check
from .view import CPU, Array, DLTensor, View, is_jax

# What an output may be: an array, which is written; True for a new one; None for no such output.
Output = Union[Array, bool, None]
# A number known now, or one fp32 element that the work reads when it runs.
Number = Union[float, Array]
# An integer known now, or one int64 element that the work reads when it runs.
Integer = Union[int, Array]

Shape = tuple[int, ...]

_TENSOR = ctypes.POINTER(DLTensor)
_SCALARS = (HEADERS.structs["nf_scalar"], HEADERS.structs["nf_integer"])
_WORKSPACE_SIZES = {
    function: FUNCTIONS[sizes]
    for function in FUNCTIONS
    for sizes in [re.sub("_(forward|backward|forward_backward|step)$", "_workspace_size", function)]
    if sizes in FUNCTIONS and sizes != function
}


def run(function: str, arguments: Mapping[str, Any], *, written: Collection[str]) -> None:
    """Calls a C function with the fields of its args, and the stream, by name; it writes those
    named in `written`.

    A field that is None keeps C's zero. A workspace that is needed and not given is made by the
    library of the first array that is written.
    """
    fields = dict(arguments)
    stream = fields.pop("stream")
    call = _Call(function[len("nf_") :].removesuffix("_forward"), stream, written)
    args = HEADERS.functions[function][1][0]._type_()
    call.fill(args, fields)
    if function in _WORKSPACE_SIZES and fields["workspace"] is None:
        size = ctypes.c_int64()
        check(_WORKSPACE_SIZES[function](args, size))
        if size.value:
            owner = (call.outputs or call.inputs)[0].array
            workspace = _empty(owner, stream, lambda _: (size.value,), "uint8")
            call.fill(args, {"workspace": workspace})
    check(FUNCTIONS[function](args, stream))


def output(
    given: Output,
    like: Array | None,
    stream: int | None,
    *,
    shape: Callable[[Shape], Shape] | None = None,
    dtype: str | None = None,
) -> Any:
    """What the caller gave for an output; for True a new array from the library of `like`, on its
    device, of its dtype, and of the shape that is made of its shape."""
    return _empty(like, stream, shape, dtype) if given is True else given


def _empty(like: Any, stream: int | None, shape: Any, dtype: str | None) -> Any:
    like = like.array if isinstance(like, View) else like
    if not hasattr(like, "__dlpack__"):
        raise TypeError(f"expected an array with __dlpack__, got {type(like).__name__}")
    if is_jax(like):
        raise TypeError(
            "JAX arrays never change, so none can be made to be written: give every output (and "
            "the workspace, if there is one) as an array of NumPy or CuPy, which "
            "jax.numpy.from_dlpack takes back"
        )
    name = type(like).__module__.partition(".")[0]
    library = sys.modules[name]
    if hasattr(like, "__array_namespace__"):
        library = like.__array_namespace__()
    if not hasattr(library, "empty") or (name != "cupy" and like.__dlpack_device__()[0] != CPU):
        raise TypeError(f"no way to make arrays of {name} on this device: give every output")
    sizes = like.shape if shape is None else shape(like.shape)
    kind = like.dtype if dtype is None else getattr(library, dtype)
    if name == "cupy":
        # CuPy's pool gives memory out again in the order of the stream that it was made for.
        with like.device, library.cuda.ExternalStream(0 if stream in (None, 1) else stream):
            return library.empty(sizes, kind)
    device = {"device": like.device} if hasattr(like, "device") else {}
    return library.empty(sizes, dtype=kind, **device)


def not_zero(**options: Any) -> None:
    """InvalidArgument for a 0 that C would read as "not given", which nobody means who writes 0."""
    for name, value in options.items():
        if isinstance(value, numbers.Real) and value == 0:
            raise InvalidArgument(f"{name}: cannot be 0; leave it out for the default")


def refuse_new(accumulate: bool, **outputs: Output) -> None:
    """InvalidArgument where something is to be added to an array that does not exist yet."""
    for name, value in outputs.items():
        if accumulate and value is True:
            raise InvalidArgument(f"{name}: accumulate adds to what an array holds; give the array")


class _Call:
    """The views and numbers that a struct points to, alive as long as the call."""

    def __init__(self, function: str, stream: int | None, written: Collection[str]) -> None:
        self.function, self.stream, self.written = function, stream, written
        if stream is not None and stream < 1:
            self._fail("stream", f"expected a CUDA stream, or 1 or 2 for a default, got {stream}")
        self.inputs: list[View] = []
        self.outputs: list[View] = []
        self.kept: list[Any] = []

    def fill(self, args: Any, fields: Mapping[str, Any]) -> None:
        kinds = dict(args._fields_)
        for name, value in fields.items():
            if value is None:
                continue
            try:
                setattr(args, name, self._passed(name, kinds[name], value))
            except (TypeError, BufferError) as error:
                kind = BufferError if isinstance(error, BufferError) else TypeError
                raise kind(f"{self.function}: {name}: {error}") from error

    def _passed(self, name: str, kind: Any, value: Any) -> Any:
        if kind is _TENSOR:
            return self._tensor(name, value)
        if kind in _SCALARS:
            if not isinstance(value, numbers.Real):
                return kind(self._tensor(name, value))
            if isinstance(kind().value, int):
                value = self._integer(name, value, 64, unsigned=True)
            return kind(None, value)
        if issubclass(kind, Enum):
            if value not in kind.values:
                self._fail(name, f"expected one of {', '.join(kind.values)}, got {value!r}")
            return kind.values[value]
        if issubclass(kind, ctypes.Structure):
            part = kind()
            self.fill(part, value._asdict())
            return part
        if kind is ctypes.POINTER(ctypes.c_int64):
            return self._keep(ctypes.pointer(ctypes.c_int64(self._integer(name, value, 64))))
        if kind is ctypes.c_char_p:
            return str.encode(value)
        if kind is ctypes.c_double:
            return value
        if kind in (ctypes.c_int32, ctypes.c_int64):
            return self._integer(name, value, 8 * ctypes.sizeof(kind))
        parts = self._keep((kind._type_ * len(value))())
        for part, item in zip(parts, value):
            self.fill(part, item._asdict())
        return parts

    def _tensor(self, name: str, array: Any) -> Any:
        view = array if isinstance(array, View) else View(array, self.stream)
        if name in self.written:
            if view.unwritable:
                self._fail(name, f"is written, but {view.unwritable}")
            self.outputs.append(view)
        else:
            self.inputs.append(view)
        return ctypes.pointer(view.tensor)

    def _integer(self, name: str, value: Any, bits: int, unsigned: bool = False) -> int:
        """The value, which ctypes would cut to its lower bits without a word."""
        if not isinstance(value, numbers.Integral):
            raise TypeError(f"expected an integer, got {type(value).__name__}")
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits if unsigned else bits - 1):
            self._fail(name, f"{value} does not fit in {bits} bits")
        return int(value)

    def _keep(self, value: Any) -> Any:
        self.kept.append(value)
        return value

    def _fail(self, name: str, reason: str) -> None:
        raise InvalidArgument(f"{self.function}: {name}: {reason}")
