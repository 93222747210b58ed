"""z = x + y: include/ninefold/vector_add.h."""

from __future__ import annotations

from typing import Any

from .call import Output, output, run
from .view import Array


def vector_add(
    x: Array,
    y: Array,
    *,
    z: Output = True,
    rung: str | None = None,
    stream: int | None = None,
) -> Any:
    """x + y, element by element, in fp32 with one rounding.

    x, y: fp32, fp16 or bf16, alike in dtype and shape; any strides, 0 included.
    z: out, like x. May be the very view of x or y.
    rung: "scalar", "stream" (CPU) or "vector16" (CUDA). None: by layout.

    Returns z.
    """
    arguments = dict(locals())
    arguments["z"] = output(z, x, stream)
    run("nf_vector_add_forward", arguments, written=("z",))
    return arguments["z"]
