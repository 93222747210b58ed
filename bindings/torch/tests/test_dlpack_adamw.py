"""adamw_step against float64, through NumPy arrays."""

import numpy as np
import pytest

import ninefold.dlpack as nf
from dlpack_arrays import check, floats, untouched

SHAPES = [(300, 7), (), (33,)]
DECAY, SCALE = (0.0, 0.1, 0.02), (None, 0.5, 2.0)


def reference(state, grads, t, lr, beta1=0.9, beta2=0.999, eps=1e-8, factor=1.0):
    for (p, m, v), g, decay, scale in zip(state, grads, DECAY, SCALE):
        rate, g = lr * (scale or 1.0), g * factor
        p -= rate * decay * p
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        root = np.sqrt(v) / np.sqrt(1 - beta2**t) + eps
        p -= rate / (1 - beta1**t) * m / root


def start(dtype=np.float32):
    params = [floats(*shape, seed=n) for n, shape in enumerate(SHAPES)]
    grads = [floats(*shape, seed=10 + n).astype(dtype) for n, shape in enumerate(SHAPES)]
    tensors = [
        nf.AdamwTensor(
            param=p.astype(dtype),
            grad=g,
            m=np.zeros_like(p),
            v=np.zeros_like(p),
            master=None if dtype == np.float32 else p,
            weight_decay=decay,
            lr_scale=scale,
        )
        for p, g, decay, scale in zip(params, grads, DECAY, SCALE)
    ]
    state = [tuple(np.float64(a) for a in (p, np.zeros_like(p), np.zeros_like(p))) for p in params]
    return tensors, [[np.array(a) for a in s] for s in state]


def values(state):
    return np.concatenate([np.ravel(a) for part in state for a in part])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("by_address", [False, True])
def test_steps(dtype, by_address):
    tensors, state = start(dtype)
    step = np.array(0) if by_address else 0
    options = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6}
    for t in (1, 2, 3):
        with untouched(*[tensor.grad for tensor in tensors]):
            lr = np.array([0.01], np.float32) if by_address else 0.01
            assert nf.adamw_step(tensors, lr=lr, step=step, **options) is None
        reference(state, [np.float64(tensor.grad) for tensor in tensors], t, 0.01, **options)
        if by_address:
            assert step == t
        else:
            step += 1
    got = [(x.param if x.master is None else x.master, x.m, x.v) for x in tensors]
    check(np.float32(values(got)), values(state))
    for tensor in tensors:
        if tensor.master is not None:
            np.testing.assert_array_equal(tensor.param, tensor.master.astype(dtype))


def test_clipping_and_the_norm():
    tensors, state = start()
    grads = [np.float64(tensor.grad) for tensor in tensors]
    norm = 0.25 * np.sqrt(sum((g**2).sum() for g in grads))
    got = nf.adamw_step(tensors, lr=0.01, grad_scale=0.25, max_grad_norm=0.5, grad_norm=True)
    assert got.shape == () and got.dtype == np.float32
    check(got, norm)
    reference(state, grads, 1, 0.01, factor=0.25 * 0.5 / (norm + 1e-6))
    check(np.float32(values([(x.param, x.m, x.v) for x in tensors])), values(state))


def test_a_skipped_step_changes_nothing():
    tensors, _ = start()
    step, infinite = np.array([4]), np.array([1.0], np.float32)
    with untouched(step, *[a for x in tensors for a in (x.param, x.m, x.v)]):
        nf.adamw_step(tensors, lr=0.01, step=step, found_inf=infinite)
    nf.adamw_step(tensors, lr=0.01, step=step, found_inf=infinite - 1)
    assert step == 5


def test_what_is_written_must_be_writable():
    for name in ("param", "m", "v"):
        tensors, _ = start()
        getattr(tensors[2], name).flags.writeable = False
        with pytest.raises((nf.InvalidArgument, BufferError)):
            nf.adamw_step(tensors, lr=0.01)
        assert (tensors[0].m == 0).all()
    step = np.array(0)
    step.flags.writeable = False
    tensors, _ = start()
    with pytest.raises((nf.InvalidArgument, BufferError)):
        nf.adamw_step(tensors, lr=0.01, step=step)


def test_wrong_options():
    tensors, _ = start()
    for option in ("beta1", "beta2", "eps", "grad_scale"):
        with pytest.raises(nf.InvalidArgument, match=f"{option}: cannot be 0"):
            nf.adamw_step(tensors, lr=0.01, **{option: 0.0})
    with pytest.raises(nf.InvalidArgument, match="lr_scale: cannot be 0"):
        nf.adamw_step([tensors[0]._replace(lr_scale=0.0)], lr=0.01)
    with pytest.raises(nf.Unsupported, match="adamw"):
        nf.adamw_step([tensors[0]._replace(param=tensors[0].param[::-1])], lr=0.01)
