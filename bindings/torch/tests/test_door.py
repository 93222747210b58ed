"""What torch's machinery asks of every function alike: tracing, modes, streams, refusals."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import compiled_once, no_gpu, two_gpus
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

import ninefold

N = 24
SAMPLES = {  # name: a function, and the shapes of its arguments for a number of rows
    "softmax": (lambda x: ninefold.softmax(x, -1), ["rows"]),
    "log_softmax": (lambda x: ninefold.log_softmax(x, 0), ["rows"]),
    "masked softmax": (
        lambda x, m: ninefold.softmax(x, -1, scale=0.5, mask=m, causal=True),
        ["rows", "row"],
    ),
    "rms_norm": (lambda x, w: ninefold.rms_norm(x, (N,), w), ["rows", "row"]),
    "layer_norm": (lambda x, w, b: ninefold.layer_norm(x, (N,), w, b), ["rows", "row", "row"]),
    "added rms_norm": (
        lambda x, r, w: ninefold.rms_norm(x, (N,), w, residual=r),
        ["rows", "rows", "row"],
    ),
    "gelu": (ninefold.gelu, ["rows"]),
    "swiglu": (ninefold.swiglu, ["rows", "rows"]),
    "vector_add": (ninefold.vector_add, ["rows", "rows"]),
}
with_samples = pytest.mark.parametrize("sample", SAMPLES)


def prepared(sample: str, device: str, rows: int = 6):
    function, shapes = SAMPLES[sample]
    shape = {"rows": (rows, N), "row": (N,)}
    return function, [torch.randn(shape[s], device=device).requires_grad_() for s in shapes]


def as_tuple(outputs) -> tuple:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def results(function, inputs, upstream) -> list:
    outputs = as_tuple(function(*inputs))
    return [*outputs, *torch.autograd.grad(outputs, inputs, [*upstream][: len(outputs)])]


@with_samples
def test_compiles(device, sample):
    """Whole, once for all sizes, and to the numbers of the eager call."""
    function, inputs = prepared(sample, device)
    function(*inputs)  # so that the names of ninefold are loaded
    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for rows in compiled_once((6, 11, 40)):
        _, inputs = prepared(sample, device, rows)
        upstream = torch.randn(2, rows, N, device=device)
        expected = results(function, inputs, upstream)
        for actual, one in zip(results(compiled, inputs, upstream), expected, strict=True):
            torch.testing.assert_close(actual, one, check_stride=True)
        with torch.no_grad():
            assert all(map(torch.equal, as_tuple(compiled(*inputs)), expected))


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="Linux says it there")
@pytest.mark.parametrize("mebibytes", [1, 40])
def test_large_outputs_on_cpu_ask_for_huge_pages(mebibytes):
    y = ninefold.softmax(torch.zeros(mebibytes, 1 << 18), -1)
    middle = y.data_ptr() + y.nbytes // 2
    flags, inside = [], False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = int(match[1], 16) <= middle < int(match[2], 16)
            elif inside and line.startswith("VmFlags:"):
                flags = line.split()
    assert ("hg" in flags) == (mebibytes >= 32)


@with_samples
def test_backward_twice(device, sample):
    """The same again, and neither inputs nor upstream gradients have changed."""
    function, inputs = prepared(sample, device)
    outputs = as_tuple(function(*inputs))
    upstream = [torch.randn_like(y) for y in outputs]
    before = [t.detach().clone() for t in (*inputs, *outputs, *upstream)]
    first, second = (
        torch.autograd.grad(outputs, inputs, upstream, retain_graph=True) for _ in range(2)
    )
    assert all(map(torch.equal, first, second))
    assert all(map(torch.equal, (*inputs, *outputs, *upstream), before))


@with_samples
def test_without_gradients(device, sample):
    function, inputs = prepared(sample, device)
    before = [t.detach().clone() for t in inputs]
    expected = as_tuple(function(*inputs))
    assert all(y.requires_grad for y in expected)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            outputs = as_tuple(function(*inputs))
        assert not any(y.requires_grad for y in outputs)
        assert all(map(torch.equal, outputs, expected))
    with torch.inference_mode():
        copies = [t.clone() for t in inputs]
        assert all(map(torch.equal, as_tuple(function(*copies)), expected))
    assert all(map(torch.equal, inputs, before))


@with_samples
def test_shapes_without_numbers(sample):
    """Meta and fake tensors: the same shapes, dtypes and strides as real ones."""
    function, inputs = prepared(sample, "cpu")
    expected = [(y.shape, y.dtype, y.stride()) for y in as_tuple(function(*inputs))]
    outputs = [as_tuple(function(*(t.to("meta") for t in inputs)))]
    with FakeTensorMode() as mode:
        outputs.append(as_tuple(function(*map(mode.from_tensor, inputs))))
    for one in outputs:
        assert [(y.shape, y.dtype, y.stride()) for y in one] == expected


@with_samples
def test_no_second_derivative(device, sample):
    if sample == "vector_add":
        pytest.skip("linear: its derivative is no operator of ours")
    function, inputs = prepared(sample, device)
    loss = sum(y.square().sum() for y in as_tuple(function(*inputs)))
    gradient = torch.autograd.grad(loss, inputs[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        gradient.sum().backward()


@with_samples
def test_no_other_derivatives(device, sample):
    """Forward mode and torch.func are refused, and not answered with zeros."""
    function, inputs = prepared(sample, device)

    def loss(x):
        return sum(y.square().sum() for y in as_tuple(function(x, *inputs[1:])))

    x = inputs[0].detach()
    for transformed in (
        torch.func.grad(loss),
        torch.func.grad(lambda x: torch.vmap(loss)(x[None]).sum()),
        lambda x: torch.func.jvp(loss, (x,), (x,)),
    ):
        with pytest.raises(NotImplementedError, match="torch.func"):
            transformed(x)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode AD"):
        function(forward_ad.make_dual(x, x), *(t.detach() for t in inputs[1:]))


@with_samples
def test_tensors_of_another_device(device, sample):
    function, inputs = prepared(sample, device)
    for i in range(len(inputs)):
        mixed = [t.to("meta") if i == j else t for j, t in enumerate(inputs)]
        if len(inputs) > 1:
            with pytest.raises(RuntimeError):
                function(*mixed)
    with pytest.raises(NotImplementedError, match="SparseC"):
        function(inputs[0].detach().to_sparse(), *inputs[1:])


@with_samples
def test_distributed_tensors_are_refused(sample, tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    tensor = pytest.importorskip("torch.distributed.tensor")
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        mesh = tensor.init_device_mesh("cpu", (1,))
        function, inputs = prepared(sample, "cpu")
        shards = [tensor.distribute_tensor(t.detach(), mesh, [tensor.Shard(0)]) for t in inputs]
        with pytest.raises(NotImplementedError, match="sharding strategy"):
            function(*shards)
    finally:
        distributed.destroy_process_group()


IN_PLACE = {
    "softmax_": (-1,),
    "log_softmax_": (-1,),
    "rms_norm_": (None, None, 1e-5),
    "layer_norm_": (None, None, 1e-5),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(device, name):
    op = getattr(torch.ops.ninefold, name)
    x = torch.randn(4, N, device=device)
    op(x, *IN_PLACE[name])
    assert x._version == 1
    wanted = torch.randn(4, N, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="no derivative"):
        op(wanted * 1, *IN_PLACE[name])
    y = wanted.exp()
    with torch.no_grad():
        op(y, *IN_PLACE[name])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():
        op(torch.randn(4, N, device=device), *IN_PLACE[name])


def test_all_operators_have_both_names():
    """With autograd and without: library.hpp."""
    complete, without = (
        {n for n in torch._C._dispatch_get_all_op_names() if n.startswith(f"{space}::")}
        for space in ("ninefold", "ninefold_no_grad")
    )
    assert {n.split("::")[1] for n in complete} == {n.split("::")[1] for n in without}
    assert len(complete) > 20
    for name in complete:
        for key in ("CPU", "CUDA", "Meta", "Autograd"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(name, key), (name, key)


@no_gpu
@with_samples
def test_current_stream(sample):
    """The input is late on a side stream; work on any other stream would read what was before."""
    function, inputs = prepared(sample, "cuda", 512)
    upstream = torch.randn(2, 512, N, device="cuda")
    expected = results(function, inputs, upstream)
    late = [torch.zeros_like(t).requires_grad_() for t in inputs]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        with torch.no_grad():
            for t, value in zip(late, inputs, strict=True):
                t.copy_(value)
        actual = results(function, late, upstream)
    torch.cuda.synchronize()
    assert all(map(torch.equal, actual, expected))


@no_gpu
@with_samples
def test_cuda_graph(sample):
    """Captured forward and backward, replayed with new numbers."""
    function, inputs = prepared(sample, "cuda")
    upstream = torch.randn(2, 6, N, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        results(function, inputs, upstream)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results(function, inputs, upstream)
    for _ in range(2):
        with torch.no_grad():
            for t in (*inputs, upstream):
                t.copy_(torch.randn_like(t))
        graph.replay()
        assert all(map(torch.equal, captured, results(function, inputs, upstream)))


@two_gpus
@with_samples
def test_second_device(sample):
    """While the first is current."""
    function, inputs = prepared(sample, "cuda:1")
    upstream = torch.randn(2, 6, N, device="cuda:1")
    actual = results(function, inputs, upstream)
    assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in actual)
    on_first = [t.detach().to("cuda:0").requires_grad_() for t in inputs]
    expected = results(function, on_first, upstream.to("cuda:0"))
    assert all(torch.equal(a, e.to("cuda:1")) for a, e in zip(actual, expected, strict=True))
    if len(inputs) > 1:
        with pytest.raises(RuntimeError, match="device"):
            function(on_first[0], *inputs[1:])


LIBRARY = Path(ninefold.__file__).parent / "libninefold_torch.so"


@pytest.mark.skipif(not shutil.which("nm"), reason="no nm here")
def test_stable_interface():
    """The library needs nothing of torch but its C interface, and nothing of Python or CUDA."""
    symbols = subprocess.run(
        ["nm", "-DC", "--undefined-only", LIBRARY], check=True, capture_output=True, text=True
    ).stdout
    assert "aoti_torch_" in symbols
    for foreign in ("at::", "c10::", "torch::", "Py", "cuda"):
        assert f" {foreign}" not in symbols
    needed = subprocess.run(["readelf", "-d", LIBRARY], check=True, capture_output=True, text=True)
    for foreign in ("libtorch_cuda", "libtorch_python", "libc10", "libpython", "libcudart"):
        assert foreign not in needed.stdout


def test_without_torch():
    """`import ninefold` and `ninefold.dlpack` work where no torch is; the rest says why not."""
    script = """
import sys
sys.modules["torch"] = None
import ninefold, ninefold.dlpack
try:
    ninefold.softmax
except ImportError as error:
    assert "torch" in str(error)
else:
    raise SystemExit("no error")
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(ninefold.__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_names():
    from ninefold import ops

    assert ops.__all__ == sorted(ops.__all__) and {*ops.__all__} <= {*dir(ninefold)}
    for name in ops.__all__:
        value = getattr(ninefold, name)
        assert value is getattr(ops, name) and value.__doc__, name
    with pytest.raises(AttributeError):
        ninefold.nothing_of_that_name
