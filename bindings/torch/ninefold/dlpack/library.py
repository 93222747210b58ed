"""The C library: found, loaded, and its status codes turned into exceptions."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from . import headers


class Error(Exception):
    """What every failure of a Ninefold call is. The text names the argument, what was expected and
    what came; a failed call has written nothing."""


class InvalidArgument(Error, ValueError):
    """The call is wrong: a missing argument, a shape, a dtype, an overlap."""


class Unsupported(Error, NotImplementedError):
    """The call has a meaning, and this build or the rung asked for cannot do it."""


class Unavailable(Error, RuntimeError):
    """The device, its driver or a needed CPU feature is not there."""


class DeviceError(Error, RuntimeError):
    """The device reported an error."""


_PACKAGE = Path(__file__).parent.parent
_ERRORS: dict[str, type[Error]] = {
    "invalid_argument": InvalidArgument,
    "unsupported": Unsupported,
    "unavailable": Unavailable,
    "runtime_error": DeviceError,
}


def _find() -> Path:
    """NINEFOLD_LIBRARY where that is set, else the library that lies in the package."""
    named = os.environ.get("NINEFOLD_LIBRARY")
    if named:
        return Path(named)
    for path in sorted(_PACKAGE.glob("libninefold.so*")):
        return path
    raise ImportError(
        f"no libninefold.so in {_PACKAGE}: install Ninefold with pip, or set NINEFOLD_LIBRARY"
    )


_c = ctypes.CDLL(str(_find()))
HEADERS = headers.read(_PACKAGE / "include" / "ninefold")
FUNCTIONS: dict[str, Any] = {name: getattr(_c, name) for name in HEADERS.functions}
for _name, (_returned, _taken) in HEADERS.functions.items():
    FUNCTIONS[_name].restype, FUNCTIONS[_name].argtypes = _returned, _taken
_STATUS = {value: name for name, value in HEADERS.enums["nf_status"].values.items()}


def check(status: Any) -> None:
    """Raises what a status stands for, with the library's own text."""
    if status.value != 0:
        raise _ERRORS[_STATUS[status.value]](FUNCTIONS["nf_last_error"]().decode())


def last_launch() -> str:
    """How the last successful call of this thread ran, for example "softmax forward cpu
    rung=row_online ...": its rung, and what was launched. "" before any."""
    return FUNCTIONS["nf_last_launch"]().decode()


def version() -> str:
    """The library's version, "0.1.0"."""
    return FUNCTIONS["nf_version"]().decode()


def build_info() -> str:
    """What is compiled into the library, for example "cpu; cuda sm_75 sm_80 sm_90a"."""
    return FUNCTIONS["nf_build_info"]().decode()
