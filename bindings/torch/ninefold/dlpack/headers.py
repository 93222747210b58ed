"""The C interface as ctypes sees it, read from the C headers themselves.

The headers are plain C by rule: enums, structs of numbers and pointers, and functions. So the
package carries them and reads them when it is imported, in a few milliseconds, and there is no
second copy of a struct that could fall behind the library. What this reader does not know is an
error, never a guess; tests/test_dlpack_layout.py holds its offsets against those of a C compiler.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, NamedTuple

from .view import DLTensor


class Headers(NamedTuple):
    """structs and enums by name; for each function what it returns and what it takes."""

    structs: dict[str, Any]
    enums: dict[str, Any]
    functions: dict[str, tuple[Any, list[Any]]]


class Enum(ctypes.c_int):
    """A C enum. `values` has its enumerators by what is left of their names, in lower case, when
    the words that all of them begin with are taken away: NF_CAUSAL_TOP_LEFT is "top_left"."""

    values: dict[str, int] = {}


_SCALARS = {
    "double": ctypes.c_double,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "nf_stream": ctypes.c_void_p,
}
_POINTERS = {
    "char": ctypes.c_char_p,
    "DLTensor": ctypes.POINTER(DLTensor),
    "int64_t": ctypes.POINTER(ctypes.c_int64),
}


def read(folder: Path) -> Headers:
    """Everything that the headers in `folder` declare."""
    paths = sorted(folder.glob("*.h"))
    if not paths:
        raise ImportError(f"no C headers in {folder}")
    text = "\n".join(_plain(path.read_text()) for path in paths)
    enums = {
        name: _enum(name, body)
        for name, body in re.findall(r"\btypedef enum (\w+)[^{]*\{(.*?)\}", text, re.S)
    }
    bodies = dict(re.findall(r"\btypedef struct (\w+)\s*\{(.*?)\}", text, re.S))
    structs: dict[str, Any] = {}

    def type_of(word: str, pointer: bool) -> Any:
        if pointer and word in _POINTERS:
            return _POINTERS[word]
        if word in bodies:
            return ctypes.POINTER(struct(word)) if pointer else struct(word)
        known = {**_SCALARS, **enums}
        if pointer or word not in known:
            raise ValueError(f"{folder}: no ctypes type for {word}{'*' * pointer}")
        return known[word]

    def declared(declaration: str) -> list[tuple[str, Any]]:
        match = re.fullmatch(r"(?:const )?(\w+)\b\s*(\*?)\s*(\w+(?:\s*,\s*\w+)*)", declaration)
        if not match or (match[2] and "," in match[3]):
            raise ValueError(f"{folder}: cannot read '{declaration}'")
        return [(name, type_of(match[1], bool(match[2]))) for name in re.findall(r"\w+", match[3])]

    def struct(name: str) -> Any:
        if name not in structs:
            declarations = [part.strip() for part in bodies[name].split(";")]
            fields = [field for part in declarations if part for field in declared(part)]
            structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        return structs[name]

    functions = {}
    for result, name, parameters in re.findall(r"\bNF_API ([^;(]+?)(\w+)\(([^)]*)\);", text):
        returned = declared(f"{result} result")[0][1]
        taken = [] if parameters == "void" else parameters.split(",")
        functions[name] = (returned, [declared(part.strip())[0][1] for part in taken])
    return Headers({name: struct(name) for name in bodies}, enums, functions)


def _plain(text: str) -> str:
    """C text without comments, what is for C++ only, and the preprocessor's other lines."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    text = re.sub(r"^#ifdef __cplusplus.*?^#endif", "", text, flags=re.S | re.M)
    return re.sub(r"^\s*#.*$", "", text, flags=re.M)


def _enum(name: str, body: str) -> Any:
    values = {}
    for part in body.strip().rstrip(",").split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", part)
        if not match:
            raise ValueError(f"enum {name}: cannot read '{part.strip()}'")
        values[match[1]] = int(match[2])
    words = [enumerator.split("_") for enumerator in values]
    shared = 0
    while len({tuple(w[: shared + 1]) for w in words}) == 1:
        shared += 1
    short = {"_".join(w[shared:]).lower(): value for w, value in zip(words, values.values())}
    return type(name, (Enum,), {"values": short})
