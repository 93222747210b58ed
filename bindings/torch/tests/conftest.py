"""What the tests of all operators share: devices, and the checks that every operator must pass."""

import pytest
import torch

import ninefold.ops  # noqa: F401  registers torch.ops.ninefold

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=no_gpu)])
def device(request) -> str:
    return request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)
    torch.compiler.reset()


def compiled_once(sizes):
    """Each size in turn; what was compiled for the first must serve the others."""
    for number, size in enumerate(sizes):
        with torch.compiler.set_stance("fail_on_recompile" if number else "default"):
            yield size


def captured(step):
    """A CUDA graph of a step that must not wait for the device, and what the step returned."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results
