"""DLPack's structs (dlpack.h, version 1) and its exchange: an array of any library as a DLTensor.

The rules are the consumer's of https://dmlc.github.io/dlpack/latest/python_spec.html.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol, Union, cast

CPU, _CUDA, _CUDA_MANAGED = 1, 2, 13  # of DLDeviceType
_BFLOAT16 = 4  # kDLBfloat, of DLDataTypeCode
_READ_ONLY, _COPIED = 1, 2  # of DLManagedTensorVersioned.flags


class SupportsDLPack(Protocol):
    """An array of NumPy, CuPy, JAX or any other library that has these two."""

    def __dlpack__(self, *, stream: int | None = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# Called with Python's lock held, as a consumer written in C would: not every producer takes it.
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class DLManagedTensor(ctypes.Structure):
    _fields_ = [
        ("dl_tensor", DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
    ]


class DLPackVersion(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("version", DLPackVersion),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]


# By a capsule's name: what it holds, and the name that says it was taken. The names are kept here
# because a capsule keeps only their address.
_CAPSULES = {
    b"dltensor_versioned": (DLManagedTensorVersioned, b"used_dltensor_versioned"),
    b"dltensor": (DLManagedTensor, b"used_dltensor"),
}

# Prototypes of our own, for those that ctypes.pythonapi hands out are shared with everybody.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)


class _Memory:
    """The content of a capsule, taken from it. The producer has it back when this object dies."""

    __slots__ = ("managed",)

    def __init__(self, capsule: Any) -> None:
        self.managed: Any = None
        for name, (kind, taken) in _CAPSULES.items():
            if _is_valid(capsule, name):
                self.managed = kind.from_address(_get_pointer(capsule, name))
                _set_name(capsule, taken)
                break
        else:
            raise BufferError(f"__dlpack__ gave {capsule!r}, not an unused DLPack capsule")

    def __del__(self) -> None:
        if self.managed is not None and self.managed.deleter:
            self.managed.deleter(ctypes.addressof(self.managed))


class View:
    """An array's memory as the C library takes it, held until the View dies.

    Every function here makes such views of its arguments and drops them when it returns. Make one
    yourself to use an array many times with a single exchange, or to say how it is ordered:

    stream: of a CUDA array, and otherwise not looked at. The producer makes this stream (a
        cudaStream_t as an int; 2 is the per-thread default) wait for what it has put on its own.
        None or 1 is the legacy default stream. -1 asks for no ordering, because the caller has
        seen to it: a graph capture needs that where the producer's current stream is not captured.

    TypeError: no __dlpack__. BufferError: the producer refuses, or its DLPack is not version 1.
    """

    __slots__ = ("array", "tensor", "unwritable", "_memory")

    def __init__(self, array: SupportsDLPack, stream: int | None = None) -> None:
        if not (hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")):
            raise TypeError(f"expected an array with __dlpack__, got {type(array).__name__}")
        self.array = array
        is_bfloat16 = False
        try:
            self._memory = _Memory(_capsule(array, stream))
        except BufferError:
            # NumPy and CuPy know bfloat16 (of ml_dtypes), but have no DLPack type for it.
            if getattr(getattr(array, "dtype", None), "name", None) != "bfloat16":
                raise
            is_bfloat16 = True
            self._memory = _Memory(_capsule(cast(Any, array).view("uint16"), stream))
        managed = self._memory.managed
        flags = 0
        if isinstance(managed, DLManagedTensorVersioned):
            if managed.version.major != 1:
                raise BufferError(f"DLPack {managed.version.major} is not the version 1 asked for")
            flags = managed.flags
        self.tensor = DLTensor.from_buffer_copy(managed.dl_tensor)
        if is_bfloat16:
            self.tensor.dtype.code = _BFLOAT16
        self.unwritable = _unwritable(array, flags)


# What an argument may be.
Array = Union[SupportsDLPack, View]


def is_jax(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


def _capsule(array: Any, stream: int | None) -> Any:
    ordering = {}
    if array.__dlpack_device__()[0] in (_CUDA, _CUDA_MANAGED):
        ordering["stream"] = 1 if stream is None else stream
    try:
        return array.__dlpack__(max_version=(1, 0), **ordering)
    except TypeError:  # a producer older than the keyword
        return array.__dlpack__(**ordering)


def _unwritable(array: Any, flags: int) -> str | None:
    """Why nothing may be written here, or None where something may."""
    if flags & _READ_ONLY:
        return "is read-only"
    if flags & _COPIED:
        return "came as a copy, in which results would be lost"
    if is_jax(array):  # its capsules have no version yet, and so no flag
        return "is a JAX array, which never changes: give an array of NumPy or CuPy"
    return None
