"""What the tests of ninefold.dlpack make their arrays with, and how they judge results: a producer
of capsules whose every choice a test makes and which counts what happens, layouts, an error."""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np

from ninefold.dlpack.view import DLDataType, DLManagedTensor, DLManagedTensorVersioned

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_DELETER = dict(DLManagedTensor._fields_)["deleter"]
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
# With the address of a capsule for the capsule, which is past being an object when it dies.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@_DESTRUCTOR
def _destroy(capsule):
    for name, kind in (
        (b"dltensor", DLManagedTensor),
        (b"dltensor_versioned", DLManagedTensorVersioned),
    ):
        if _is_valid(capsule, name):
            address = _pointer(capsule, name)
            kind.from_address(address).deleter(address)


class Producer:
    """Exports the memory of a NumPy array.

    exported and deleted count capsules made and memory given back; asked is the keywords of each
    __dlpack__. `behind` is how many bytes before its first element the data pointer points to.
    """

    def __init__(
        self,
        array,
        *,
        version=(1, 0),
        flags=0,
        behind=0,
        device=(1, 0),
        null_strides=False,
    ):
        self.array, self.version, self.flags, self.behind = array, version, flags, behind
        self.device, self.null_strides = device, null_strides
        self.exported = self.deleted = 0
        self.asked, self.alive = [], {}
        self._deleter = _DELETER(self._delete)

    def _delete(self, address):
        self.deleted += 1
        del self.alive[address]  # a KeyError here is a second delete

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        if self.version is None and "max_version" in keywords:
            raise TypeError("an unexpected keyword argument 'max_version'")
        self.asked.append(keywords)
        self.exported += 1
        managed = DLManagedTensor() if self.version is None else DLManagedTensorVersioned()
        if self.version is not None:
            managed.version.major, managed.version.minor = self.version
            managed.flags = self.flags
        managed.deleter = self._deleter
        numbers = ctypes.c_int64 * max(self.array.ndim, 1)
        shape = numbers(*self.array.shape)
        strides = numbers(*(s // self.array.itemsize for s in self.array.strides))
        tensor = managed.dl_tensor
        tensor.data = self.array.ctypes.data - self.behind
        tensor.byte_offset = self.behind
        tensor.device.device_type, tensor.device.device_id = self.device
        tensor.ndim = self.array.ndim
        tensor.dtype = DLDataType(_CODES[self.array.dtype.kind], 8 * self.array.itemsize, 1)
        tensor.shape = ctypes.cast(shape, type(tensor.shape))
        if not self.null_strides:
            tensor.strides = ctypes.cast(strides, type(tensor.strides))
        address = ctypes.addressof(managed)
        self.alive[address] = (managed, shape, strides)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        return _new(address, name, ctypes.cast(_destroy, ctypes.c_void_p))


def floats(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _inside(array, take):
    """The values of an array in a part of a larger one, whose other elements are no good."""
    poison = np.nan if array.dtype.kind == "f" else -1
    base = np.full([2 * size + 3 for size in array.shape], poison, array.dtype)
    part = take(base)
    part[...] = array
    return part


# The same values in another layout: each changes strides, and most the first element's place.
LAYOUTS = {
    "contiguous": np.array,
    "transposed": lambda a: np.array(a.T).T,
    "stepped": lambda a: _inside(
        a, lambda base: base[tuple(slice(2, 2 + 2 * n, 2) for n in a.shape)]
    ),
    "backwards": lambda a: _inside(a, lambda base: base[tuple(slice(n, 0, -1) for n in a.shape)]),
    "rows apart": lambda a: _inside(a, lambda base: base[tuple(slice(1, 1 + n) for n in a.shape)]),
}


def check(actual, expected):
    """Shape, and the relative L2 error: one rounding to the dtype, and some in fp32 before it."""
    assert actual.shape == np.shape(expected)
    difference = np.linalg.norm(np.float64(actual) - expected)
    unit = 2.0**-11 if actual.dtype == np.float16 else 2.0**-24
    assert difference <= (unit + 2e-6) * np.linalg.norm(expected), difference


@contextlib.contextmanager
def untouched(*arrays):
    """Holds that nothing in the block writes to these arrays."""
    before = [array.tobytes() for array in arrays]
    yield
    assert before == [array.tobytes() for array in arrays]
