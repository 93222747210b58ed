"""Ninefold's ops on arrays of any library that speaks DLPack: NumPy, CuPy, JAX and others.

    import numpy as np
    import ninefold.dlpack as nf

    y = nf.softmax(x, scale=0.125, causal="bottom_right")   # a new array of x's library
    nf.softmax(x, y=x)                                       # or over x itself

Nothing is copied: a call takes views of its arguments through __dlpack__, with their real strides,
calls the C library and gives the views back; a `View` of your own serves many calls. Neither torch
nor NumPy is imported.

The functions and their keywords are named as in the C headers, which say all there is to say about
each op. What is an option in C has None (or the value that switches it off) for its default; enums
are their names in lower case.

Outputs are keywords too. Each is an array, which is written and returned; or True, for a new array
from the library of the input; or None, where it is not wanted. JAX arrays never change: they can
be inputs, and every output is then to be given as an array of NumPy or CuPy, which
jax.numpy.from_dlpack takes back.

On CUDA the work is put on `stream`, a cudaStream_t as an int (None is the legacy default stream),
and nobody waits for it. That stream first waits for what the arrays' libraries have put on theirs,
as DLPack has it. What comes after the call is the caller's to order, and so is keeping the arrays
alive: with CuPy, its own current stream, cupy.cuda.get_current_stream().ptr, does both.

Failures raise `Error` before anything is written, with the C library's sentence: InvalidArgument is
a ValueError, Unsupported a NotImplementedError, Unavailable and DeviceError are RuntimeErrors. What
is no array is a TypeError, and what a library refuses to export is its own BufferError.
"""

from .activation import ActivationGradients, activation, activation_backward
from .adamw import AdamwTensor, adamw_step
from .cross_entropy import (
    CrossEntropy,
    cross_entropy,
    cross_entropy_backward,
    cross_entropy_forward_backward,
)
from .dropout import dropout, dropout_backward
from .library import (
    DeviceError,
    Error,
    InvalidArgument,
    Unavailable,
    Unsupported,
    build_info,
    last_launch,
    version,
)
from .matmul import Matmul, matmul
from .norm import (
    Norm,
    NormGradients,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from .rope import Rope, RopeScaling, rope, rope_backward
from .softmax import softmax, softmax_backward
from .vector_add import vector_add
from .view import View

__all__ = [
    "ActivationGradients",
    "AdamwTensor",
    "CrossEntropy",
    "DeviceError",
    "Error",
    "InvalidArgument",
    "Matmul",
    "Norm",
    "NormGradients",
    "Rope",
    "RopeScaling",
    "Unavailable",
    "Unsupported",
    "View",
    "activation",
    "activation_backward",
    "adamw_step",
    "build_info",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_forward_backward",
    "dropout",
    "dropout_backward",
    "last_launch",
    "layer_norm",
    "layer_norm_backward",
    "matmul",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "rope_backward",
    "softmax",
    "softmax_backward",
    "vector_add",
    "version",
]
