"""The exchange of arrays: capsules taken and given back, flags, streams, errors, threads."""

import copy
import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import ninefold.dlpack as nf
from dlpack_arrays import Producer, floats

READ_ONLY, COPIED = 1, 2
VERSIONS = pytest.mark.parametrize("version", [(1, 0), (1, 3), None], ids=["1.0", "1.3", "none"])


def softmax(x):
    e = np.exp(np.float64(x) - np.max(x, -1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-7)


@VERSIONS
@pytest.mark.parametrize("behind", [0, 4, 64])
@pytest.mark.parametrize("view", ["whole", "transposed", "stepped", "backwards", "one row"])
def test_every_layout_is_read_and_written_as_it_is(version, behind, view):
    take = {
        "whole": lambda a: a,
        "transposed": lambda a: a.T,
        "stepped": lambda a: a[1::2, ::3],
        "backwards": lambda a: a[::-1, ::-1],
        "one row": lambda a: a[2:3],
    }[view]
    x, out = floats(12, 12), np.full((12, 12), np.nan, np.float32)
    y = take(out)
    nf.softmax(
        Producer(take(x), version=version, behind=behind),
        y=Producer(y, version=version, behind=behind),
    )
    close(y, softmax(take(x)))
    assert np.isnan(out).sum() == out.size - y.size  # nothing beside it was written


def test_missing_strides_mean_contiguous():
    x = floats(3, 5)
    y = np.empty_like(x)
    nf.softmax(Producer(x, version=None, null_strides=True), y=y)
    close(y, softmax(x))


@VERSIONS
def test_each_capsule_is_given_back_once(version):
    x, y = Producer(floats(4, 8), version=version), Producer(floats(4, 8), version=version)
    for count in range(1, 101):
        nf.softmax(x, y=y)
        assert (x.exported, x.deleted, y.exported, y.deleted) == (count,) * 4
    assert not x.alive and not y.alive


@VERSIONS
def test_a_failing_call_gives_back_what_it_took(version):
    x = Producer(floats(4, 8), version=version)
    for bad in (Producer(floats(4, 9)), [1.0], Producer(floats(4, 8), version=(2, 0))):
        with pytest.raises((nf.Error, TypeError, BufferError)):
            nf.softmax(x, y=bad)
    assert (x.exported, x.deleted) == (3, 3)


def test_numpy_arrays_are_let_go():
    x, y = floats(4, 8), floats(4, 8)
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(50):
        nf.softmax(x, y=y)
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before


def test_a_view_is_one_exchange_for_many_calls():
    values = floats(4, 8)
    x = Producer(values)
    view = nf.View(x)
    for _ in range(3):
        close(nf.softmax(view, y=np.empty_like(values)), softmax(values))
    assert (x.exported, x.deleted) == (1, 0)
    second = copy.copy(view)
    del view
    gc.collect()
    close(nf.softmax(second, y=np.empty_like(values)), softmax(values))
    assert x.deleted == 0
    del second
    gc.collect()
    assert x.deleted == 1


def test_a_view_outlives_its_array_and_calls_work_after_it():
    x = floats(64, 64)
    expected = softmax(x)
    view = nf.View(x)
    y = np.empty_like(x)
    del x
    gc.collect()
    scratch = [np.full((64, 64), 7.0, np.float32) for _ in range(8)]  # would reuse freed memory
    close(nf.softmax(view, y=y), expected)
    del view, scratch
    gc.collect()
    close(nf.softmax(y), softmax(y))


def test_results_of_a_view_are_arrays_of_its_library():
    x = floats(4, 6)
    y = nf.softmax(nf.View(x))
    assert isinstance(y, np.ndarray)
    close(y, softmax(x))


def test_a_read_only_array_can_be_read_and_not_written():
    x, y = floats(4, 8), floats(4, 8)
    before = y.copy()
    for flags, reason in ((READ_ONLY, "read-only"), (COPIED, "copy")):
        with pytest.raises(nf.InvalidArgument, match=f"softmax: y: .*{reason}"):
            nf.softmax(x, y=Producer(y, flags=flags))
        close(nf.softmax(Producer(x, flags=flags), y=np.empty_like(x)), softmax(x))
    np.testing.assert_array_equal(y, before)


def test_numpys_read_only_arrays():
    x = np.broadcast_to(floats(1, 8), (4, 8))
    frozen = floats(4, 8)
    frozen.flags.writeable = False
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":  # its DLPack had no way to say so before
        close(nf.softmax(x), softmax(x))
    with pytest.raises((nf.InvalidArgument, BufferError)):
        nf.softmax(floats(4, 8), y=frozen)
    np.testing.assert_array_equal(frozen, floats(4, 8))


def test_capsules_that_are_none():
    class Bad:
        def __init__(self, capsule):
            self.capsule = capsule

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            return self.capsule

    producer = Producer(floats(4, 8))
    capsule = producer.__dlpack__()
    y = np.empty((4, 8), np.float32)
    nf.softmax(Bad(capsule), y=y)
    for used in (capsule, 7):
        with pytest.raises(BufferError, match="not an unused DLPack capsule"):
            nf.softmax(Bad(used), y=y)
    del capsule, used
    assert producer.deleted == 1


def test_another_major_version_is_given_back_unread():
    x = Producer(floats(4, 8), version=(2, 0))
    with pytest.raises(BufferError, match="DLPack 2"):
        nf.softmax(x, y=floats(4, 8))
    assert (x.exported, x.deleted) == (1, 1)


@pytest.mark.parametrize("stream, expected", [(None, 1), (1, 1), (2, 2), (0x7F0012345670, None)])
@VERSIONS
def test_a_cuda_producer_is_told_the_stream(version, stream, expected):
    # Empty, so that a build with CUDA does nothing with it.
    x = Producer(floats(0, 8), version=version, device=(2, 0))
    try:
        nf.softmax(x, y=x, stream=stream)
    except nf.Unavailable:  # no CUDA in the build, or no driver
        pass
    asked = {"stream": expected or stream}
    if version is not None:
        asked["max_version"] = (1, 0)
    assert x.asked == [asked, asked]
    assert x.deleted == 2


def test_a_cuda_array_without_cuda_is_a_clear_error():
    if "cuda" in nf.build_info():
        pytest.skip("this build has CUDA")
    x = Producer(floats(2, 8), device=(2, 0))
    with pytest.raises(nf.Unavailable, match="softmax") as caught:
        nf.softmax(x, y=x)
    assert isinstance(caught.value, RuntimeError)


def test_a_view_can_ask_for_no_ordering_and_a_call_cannot():
    x = Producer(floats(0, 8), device=(2, 0))
    nf.View(x, stream=-1)
    assert x.asked == [{"stream": -1, "max_version": (1, 0)}]
    for stream in (-1, 0):
        with pytest.raises(nf.InvalidArgument, match="stream"):
            nf.softmax(floats(2, 8), stream=stream)


def test_a_cpu_producer_is_told_of_no_stream():
    x = Producer(floats(2, 8))
    nf.softmax(x, y=np.empty((2, 8), np.float32), stream=2)
    assert x.asked == [{"max_version": (1, 0)}]


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda x: nf.softmax([1.0]), TypeError, "list"),
        (lambda x: nf.softmax(x, mask=[1.0]), TypeError, "softmax: mask: .*list"),
        (lambda x: nf.softmax(x, y=None), nf.InvalidArgument, "y"),
        (lambda x: nf.softmax(x, y=np.empty((4, 7), np.float32)), nf.InvalidArgument, "y"),
        (lambda x: nf.softmax(x.astype(np.float64)), nf.Unsupported, "x: expected fp32"),
        (lambda x: nf.softmax(x, causal="up"), nf.InvalidArgument, "none, bottom_right, top_left"),
        (lambda x: nf.softmax(x, causal=1), nf.InvalidArgument, "causal"),
        (lambda x: nf.softmax(x, log=2), nf.InvalidArgument, "log"),
        (lambda x: nf.softmax(x, log=2**32), nf.InvalidArgument, "log: 4294967296"),
        (lambda x: nf.softmax(x, log="yes"), TypeError, "log: expected an integer"),
        (lambda x: nf.softmax(x, scale="2"), TypeError, "scale"),
        (lambda x: nf.softmax(x, scale=0), nf.InvalidArgument, "scale: cannot be 0"),
        (lambda x: nf.softmax(x, scale=float("nan")), nf.InvalidArgument, "scale"),
        (lambda x: nf.softmax(x, rung="fast"), nf.Unsupported, "fast"),
        (lambda x: nf.softmax(x[:, 0], causal="top_left"), nf.Unsupported, "causal"),
        (lambda x: nf.softmax(x, y=x[::-1]), nf.InvalidArgument, "overlap"),
        (lambda x: nf.dropout(x, p=0.5, seed=2**64), nf.InvalidArgument, "seed"),
        (lambda x: nf.dropout(x, p=0.5, seed=1.5), TypeError, "seed: expected"),
        (lambda x: nf.dropout(x, p=0.5, seed=x), nf.Unsupported, "seed"),
        (lambda x: nf.rms_norm(x, eps=0.0), nf.InvalidArgument, "eps: cannot be 0"),
    ],
)
def test_wrong_arguments(call, kind, words):
    x = floats(4, 8)
    with pytest.raises(kind, match=words):
        call(x)
    np.testing.assert_array_equal(x, floats(4, 8))


def test_errors_are_pythons_kinds_too():
    assert issubclass(nf.InvalidArgument, ValueError)
    assert issubclass(nf.Unsupported, NotImplementedError)
    assert issubclass(nf.DeviceError, RuntimeError)
    for kind in (nf.InvalidArgument, nf.Unsupported, nf.Unavailable, nf.DeviceError):
        assert issubclass(kind, nf.Error)


def test_the_rung_asked_for_is_the_one_that_ran():
    x = floats(4, 8)
    for rung in ("scalar", "stream"):
        nf.vector_add(x, x, rung=rung)
        assert f"rung={rung}" in nf.last_launch()


def test_threads_have_their_own_results_and_their_own_errors():
    failures = []

    def work(n):
        try:
            for i in range(100):
                x = floats(3, n, seed=i)
                close(nf.softmax(x), softmax(x))
                with pytest.raises(nf.InvalidArgument, match=rf"\b{n + 1}\b"):
                    nf.softmax(x, y=np.empty((3, n + 1), np.float32))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(101, 109)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def run_python(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
    )


def test_neither_torch_nor_numpy_is_imported():
    program = "import sys, ninefold.dlpack; print({'torch', 'numpy'} & set(sys.modules))"
    done = run_python(program)
    assert done.stdout == "set()\n", done.stderr


def test_the_environment_names_another_library():
    done = run_python("import ninefold.dlpack", NINEFOLD_LIBRARY="/nowhere/libninefold.so")
    assert done.returncode != 0 and "/nowhere/libninefold.so" in done.stderr
    from ninefold.dlpack.library import _find

    done = run_python(
        "import ninefold.dlpack as nf; print(nf.version())", NINEFOLD_LIBRARY=str(_find())
    )
    assert done.stdout == nf.version() + "\n", done.stderr
