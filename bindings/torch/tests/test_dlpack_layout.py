"""The structs that are read from the headers are those that a C compiler sees, and every field of
them is a keyword."""

import ctypes
import inspect
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import ninefold.dlpack as nf
from ninefold.dlpack import headers, library, view

STRUCTS = {
    **library.HEADERS.structs,
    **{kind.__name__: kind for kind in (view.DLTensor, view.DLManagedTensor)},
}


def test_a_c_compiler_agrees(tmp_path):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler here")
    folder = Path(library._PACKAGE) / "include"
    lines, expected = [], []
    for name, kind in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(kind)}")
        for field, _ in kind._fields_:
            at = f"offsetof({name}, {field}), sizeof((({name}*)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {at});')
            place = getattr(kind, field)
            expected.append(f"{name}.{field} {place.offset} {place.size}")
    for name, kind in library.HEADERS.enums.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(kind)}")
    includes = "".join(f"#include <ninefold/{path.name}>\n" for path in folder.glob("*/*.h"))
    source = tmp_path / "layout.c"
    source.write_text(
        f"#include <stdio.h>\n{includes}int main(void) {{ {' '.join(lines)} return 0; }}\n"
    )
    program = tmp_path / "layout"
    subprocess.run([compiler, f"-I{folder}", source, "-o", program], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == expected
    assert len(expected) > 150


def test_enums_by_their_names():
    enums = library.HEADERS.enums
    assert enums["nf_causal"].values == {"none": 0, "bottom_right": 1, "top_left": 2}
    assert enums["nf_norm_rounding"].values == {"once": 0, "llama": 1}
    assert enums["nf_activation_gating"].values["interleaved"] == 3
    assert enums["nf_status"].values["runtime_error"] == 4
    assert set(library._ERRORS) == set(enums["nf_status"].values) - {"ok"}


def bound(function):
    """The Python function of a C function: nf_softmax_forward is softmax."""
    return getattr(nf, re.sub("_forward$", "", function[len("nf_") :]))


CALLS = {
    name: taken[0]._type_
    for name, (_, taken) in library.HEADERS.functions.items()
    if taken and not name.endswith("_workspace_size")
}


def test_every_c_function_is_a_python_function():
    assert len(CALLS) == 18
    for name in CALLS:
        assert callable(bound(name)), name


@pytest.mark.parametrize("struct", sorted(set(CALLS.values()), key=lambda kind: kind.__name__))
def test_every_field_is_a_keyword_and_every_keyword_a_field(struct):
    fields = {name for name, _ in struct._fields_} - {"count"}  # the length of adamw's list
    keywords = set()
    for name, kind in CALLS.items():
        if kind is struct:
            own = set(inspect.signature(bound(name)).parameters)
            assert own - fields == {"stream"}, name
            keywords |= own
    assert keywords - {"stream"} == fields


def test_every_function_says_what_it_does():
    for name in nf.__all__:
        assert inspect.getdoc(getattr(nf, name)), name
    for struct, kind in (("nf_rope_scaling", nf.RopeScaling), ("nf_adamw_tensor", nf.AdamwTensor)):
        assert kind._fields == tuple(name for name, _ in library.HEADERS.structs[struct]._fields_)


@pytest.mark.parametrize(
    "text",
    [
        "typedef struct a { float x; } a;",
        "typedef struct a { double x[3]; } a;",
        "typedef struct a { const DLTensor *x, *y; } a;",
        "typedef struct a { const DLTensor* x, y; } a;",
        "typedef struct a { unsigned int x; } a;",
        "typedef struct a { int32_t x : 3; } a;",
        "typedef enum a { A = 1 << 2 } a;",
        "typedef enum a { A, B } a;",
        "NF_API nf_status nf_a(float x);",
    ],
)
def test_what_the_reader_does_not_know_is_an_error(tmp_path, text):
    (tmp_path / "a.h").write_text(text)
    with pytest.raises(ValueError):
        headers.read(tmp_path)


def test_no_headers_are_an_error(tmp_path):
    with pytest.raises(ImportError, match="no C headers"):
        headers.read(tmp_path)
