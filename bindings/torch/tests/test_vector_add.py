"""The sum of two tensors against torch's, which rounds once too: the same bits."""

import itertools

import pytest
import torch
from torch.library import opcheck

import ninefold

DTYPES = torch.float32, torch.bfloat16, torch.float16
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T,
    "every second": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(5, -1),
    "empty": lambda x: x[:0],
    "scalar": lambda x: x[0, 0],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_is_torchs_sum(device, dtype, layout):
    x, y = (layout(torch.randn(6, 37, device=device).to(dtype)) for _ in range(2))
    z = ninefold.vector_add(x, y)
    assert torch.equal(z, x + y) and z.dtype == dtype and z.is_contiguous()


@pytest.mark.parametrize("wanted", [*itertools.product([False, True], repeat=2)], ids=str)
def test_each_subset_of_gradients(device, wanted):
    x, y = (torch.randn(3, 8, device=device, requires_grad=want) for want in wanted)
    upstream = torch.randn(3, 8, device=device)
    z = ninefold.vector_add(x, y)
    assert z.requires_grad == any(wanted)
    if any(wanted):
        z.backward(upstream)
    for tensor, want in zip((x, y), wanted):
        assert torch.equal(tensor.grad, upstream) if want else tensor.grad is None


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(device, grad):
    x, y = (torch.randn(3, 8, device=device, requires_grad=grad) for _ in range(2))
    for arguments in [(x, y), (x[:, ::2], y[:, 1::2]), (x[:0], y[:0])]:
        opcheck(torch.ops.ninefold.vector_add.default, arguments)


def test_compiles_whole(device):
    compiled = torch.compile(ninefold.vector_add, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 8, device=device)
    assert torch.equal(compiled(x, x), x + x)


def test_wrong_input(device):
    x = torch.randn(3, 8, device=device)
    for other in (x[:2], x[0], x.bfloat16()):
        with pytest.raises(RuntimeError, match="y"):
            ninefold.vector_add(x, other)
    with pytest.raises(NotImplementedError, match="fp32, fp16"):
        ninefold.vector_add(x.double(), x.double())
    with pytest.raises(TypeError):
        ninefold.vector_add(x, 1.0)
