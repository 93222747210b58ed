"""Arrays of the libraries that people have: bfloat16 in NumPy, JAX, CuPy, torch as one of them."""

import numpy as np
import pytest

import ninefold.dlpack as nf
from dlpack_arrays import floats


def softmax(x):
    e = np.exp(np.float64(x) - np.float64(x).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def close(actual, expected, rtol=2e-6):
    np.testing.assert_allclose(np.float64(actual), expected, rtol=rtol, atol=1e-7)


def test_numpy_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = floats(6, 10).astype(bfloat16)
    y = nf.softmax(x)
    assert y.dtype == bfloat16
    close(y, softmax(x), rtol=2**-8)
    out = np.zeros((10, 6), bfloat16)
    nf.softmax(x[::-1], y=out.T)
    close(out.T, softmax(x[::-1]), rtol=2**-8)
    with pytest.raises(nf.Unsupported, match="expected fp32"):
        nf.softmax(x.view(np.uint16))  # the same bits without the name are no bfloat16


def test_numpy_boolean_mask():
    x, mask = floats(4, 6), floats(4, 6, seed=1) > 0
    y = nf.softmax(x, mask=mask)
    close(y, np.nan_to_num(softmax(np.where(mask, x, -np.inf))))
    assert (y[~mask] == 0).all() and (y[mask] > 0).all()


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="JAX is not installed")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax_arrays_come_in(jax, dtype):
    x = jax.numpy.asarray(floats(8, 16)).astype(dtype)
    y = np.empty((8, 16), np.float32)
    assert nf.softmax(x, y=y) is y
    close(y, softmax(np.asarray(x, np.float32)))
    close(jax.numpy.from_dlpack(y), y)


def test_jax_results_that_are_still_being_computed_are_waited_for(jax):
    step = jax.jit(lambda a: a @ a / 32)
    a = jax.numpy.asarray(floats(1024, 1024))
    for _ in range(4):
        a = step(a)
    y = nf.softmax(a, y=np.empty((1024, 1024), np.float32))
    close(y, softmax(np.asarray(a)))


def test_jax_integers_and_booleans(jax):
    logits = floats(5, 7)
    targets = jax.numpy.asarray(np.arange(5, dtype=np.int32))
    loss = nf.cross_entropy(logits, targets, reduction="none").token_loss
    close(loss, -np.log(softmax(logits))[np.arange(5), np.arange(5)])
    mask = jax.numpy.asarray(np.tri(5, 7, dtype=bool))
    close(
        nf.softmax(logits, mask=mask), softmax(np.where(np.tri(5, 7, dtype=bool), logits, -np.inf))
    )


def test_jax_arrays_are_never_written(jax):
    x = jax.numpy.asarray(floats(4, 8))
    for call in (
        lambda: nf.softmax(floats(4, 8), y=x),
        lambda: nf.softmax(floats(4, 8), y=nf.View(x)),
    ):
        with pytest.raises(nf.InvalidArgument, match="y: .*JAX.*never changes"):
            call()
    for call in (lambda: nf.softmax(x), lambda: nf.softmax(x, y=True)):
        with pytest.raises(TypeError, match="give every output"):
            call()
    np.testing.assert_array_equal(x, floats(4, 8))


@pytest.fixture
def cupy():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no GPU for CuPy: {error}")
    if "cuda" not in nf.build_info():
        pytest.skip("this build has no CUDA")
    return cupy


def test_cupy_arrays_in_and_out(cupy):
    x = cupy.asarray(floats(64, 48))
    y = nf.softmax(x.T)
    assert isinstance(y, cupy.ndarray) and "cuda" in nf.last_launch()
    close(cupy.asnumpy(y), softmax(floats(64, 48).T))
    nf.softmax(x, y=x)
    close(cupy.asnumpy(x), softmax(floats(64, 48)))


def test_cupy_on_a_stream_of_its_own(cupy):
    expected = softmax(floats(512, 512))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(50):
            x = cupy.asarray(floats(512, 512))
            for _ in range(20):
                x += 1.0  # a queue of work that the call must wait for
            y = nf.softmax(x, stream=stream.ptr)
            close(cupy.asnumpy(y), expected, rtol=1e-4)


def test_cupy_on_another_stream_than_its_current_one(cupy):
    other = cupy.cuda.Stream(non_blocking=True)
    x = cupy.asarray(floats(512, 512))
    for _ in range(200):
        x += 1.0
    y = nf.softmax(x, stream=other.ptr)
    other.synchronize()
    close(cupy.asnumpy(y), softmax(floats(512, 512)), rtol=1e-4)


def test_cupy_workspace_and_device_scalars(cupy):
    logits, targets = floats(256, 1000), np.arange(256)
    got = nf.cross_entropy_forward_backward(
        cupy.asarray(logits), cupy.asarray(targets), denominator=cupy.full((), 128, cupy.float32)
    )
    expected = -np.log(softmax(logits))[targets, targets].sum() / 128
    close(float(got.loss), expected)
    assert got.dlogits.device == got.loss.device


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_any_other_library_that_has_empty(torch, dtype):
    x = torch.from_numpy(floats(8, 16)).to(getattr(torch, dtype))
    y = nf.softmax(x)
    assert y.dtype == x.dtype
    close(y.float(), softmax(x.float().numpy()), rtol=2e-6 if dtype == "float32" else 2**-8)
    norm = nf.layer_norm(x, mean=True, rstd=True)
    assert norm.mean.dtype == torch.float32 and norm.mean.shape == (8,)


def test_what_a_library_refuses_to_export_is_its_own_error(torch):
    with pytest.raises(BufferError, match="require gradient"):
        nf.softmax(torch.zeros(2, 3, requires_grad=True))


def test_a_library_that_can_make_nothing_is_asked_for_the_outputs():
    from dlpack_arrays import Producer

    with pytest.raises(TypeError, match="give every output"):
        nf.softmax(Producer(floats(2, 3)))
