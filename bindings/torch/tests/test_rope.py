"""Rotary position embedding against its definition in float64."""

import itertools
from functools import partial

import pytest
import torch
from torch.library import opcheck

import ninefold
from conftest import compiled_once, no_gpu
from rope_reference import DTYPES, angles, assert_rounded_once, gradients, queries_and_keys, turned


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_float64(device, dtype, interleaved, layout):
    q, k = queries_and_keys(2, 5, 3, 24, dtype=dtype, device=device)
    upstreams = tuple(torch.randn_like(t) for t in (q, k))
    angle = angles(torch.arange(5, device=device) + 1000, 16, base=500.0)[None]
    exact = gradients(
        lambda q, k: (turned(q, angle, interleaved), turned(k, angle, interleaved)),
        q.double(), k.double(), upstreams=upstreams,
    )
    swap = (lambda t: t.transpose(1, 2)) if layout == "bhsd" else (lambda t: t)
    tables = {"cos": angle[0].cos().float(), "sin": angle[0].sin().float()}
    for source in ({"base": 500.0, "rotary_dim": 16, "offset": 1000}, tables):
        function = partial(
            ninefold.apply_rotary, layout=layout, interleaved=interleaved, **source
        )
        inputs = [swap(t).clone() for t in (q, k)]
        results = gradients(function, *inputs, upstreams=tuple(map(swap, upstreams)))
        for actual, expected in zip(results, exact):
            assert actual.dtype == dtype and actual.is_contiguous()
            assert_rounded_once(swap(actual), expected)
        assert torch.equal(results[0][..., 16:], inputs[0][..., 16:])
        assert torch.equal(swap(inputs[0]), q) and torch.equal(swap(inputs[1]), k)


def test_pairs_are_halves_unless_interleaved(device):
    x = torch.tensor([1.0, 0, 0, 0], device=device).reshape(1, 1, 1, 4)
    for interleaved, expected in [(False, [0.5403, 0, 0.8415, 0]), (True, [0.5403, 0.8415, 0, 0])]:
        y = ninefold.apply_rotary(x, offset=1, interleaved=interleaved).flatten()
        torch.testing.assert_close(y, y.new_tensor(expected), rtol=0, atol=5e-5)


@pytest.mark.parametrize("shape", [*itertools.product((1, 2), repeat=3), (0, 2, 2), (2, 0, 2)])
def test_sizes_of_one_and_none(device, shape):
    q, k = queries_and_keys(*shape, 128, device=device)
    angle = angles(torch.arange(shape[1], device=device), 128)[None]
    for layout, swap in [("bshd", lambda t: t), ("bhsd", lambda t: t.transpose(1, 2))]:
        results = ninefold.apply_rotary(swap(q), swap(k), layout=layout)
        for actual, x in zip(results, (q, k)):
            assert_rounded_once(swap(actual), turned(x, angle))


def test_positions(device):
    q, k = queries_and_keys(2, 4, 3, 8, device=device)
    ids = torch.tensor([[3, 0, 7, 7], [1, 2, 3, 2**20]], device=device)
    row = torch.arange(4, device=device)
    starts = torch.tensor([5, 9], dtype=torch.int32, device=device)
    for options, positions in [
        ({"position_ids": ids}, ids),
        ({"position_ids": ids[:1], "offset": 2}, ids[:1] + 2),
        ({"position_ids": ids[1].int()}, ids[1:]),
        ({"offset": -3}, row[None] - 3),
        ({"offset": starts}, starts[:, None] + row),
    ]:
        for actual, x in zip(ninefold.apply_rotary(q, k, **options), (q, k)):
            assert_rounded_once(actual, turned(x, angles(positions, 8)))


def test_packed_sequences(device):
    q, k = (t[0] for t in queries_and_keys(1, 7, 3, 8, device=device))  # (S, H, D)
    cu_seqlens = torch.tensor([0, 3, 3, 7], dtype=torch.int32, device=device)
    offset = torch.tensor([0, 50, 10], device=device)
    for options, positions in [
        ({}, [0, 1, 2, 0, 1, 2, 3]),
        ({"offset": offset}, [0, 1, 2, 10, 11, 12, 13]),
    ]:
        angle = angles(torch.tensor(positions, device=device), 8)
        for actual, x in zip(
            ninefold.apply_rotary(q, k, cu_seqlens=cu_seqlens, **options), (q, k)
        ):
            assert_rounded_once(actual, turned(x, angle))


def test_slices_of_a_packed_projection(device):
    packed, upstream = (torch.randn(2, 5, 6, 16, device=device) for _ in range(2))
    angle = angles(torch.arange(5, device=device), 16)[None]

    def ours(packed):
        return ninefold.apply_rotary(packed[:, :, :3], packed[:, :, 3:5])

    def exact(packed):
        return turned(packed[:, :, :3], angle), turned(packed[:, :, 3:5], angle)

    # Gradients that arrive with stride 0 and transposed.
    upstreams = upstream[:, :, :1].expand(-1, -1, 3, -1), upstream[..., :2, :].flip(2)
    for actual, expected in zip(
        gradients(ours, packed, upstreams=upstreams),
        gradients(exact, packed.double(), upstreams=upstreams),
    ):
        assert_rounded_once(actual, expected)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("used", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("wanted", [*itertools.product([False, True], repeat=2)], ids=str)
def test_each_subset_of_gradients(device, wanted, used, inplace):
    inputs = queries_and_keys(2, 3, 2, 8, device=device)
    upstreams = tuple(torch.randn_like(t) for t in inputs)
    every = gradients(ninefold.apply_rotary, *inputs, upstreams=upstreams)[2:]
    leaves = [t.clone().requires_grad_(w) for t, w in zip(inputs, wanted)]
    if inplace:
        outputs = ninefold.apply_rotary_(*(t * 1 for t in leaves))
    else:
        outputs = ninefold.apply_rotary(*leaves)
    loss = sum((y * u).sum() for y, u, use in zip(outputs, upstreams, used) if use)
    if loss.requires_grad:
        loss.backward()
    for leaf, expected, want, use in zip(leaves, every, wanted, used):
        if want and use:
            assert torch.equal(leaf.grad, expected)
        else:
            assert leaf.grad is None or not leaf.grad.any()


def test_queries_alone(device):
    q, _ = queries_and_keys(2, 3, 2, 8, device=device)
    both, _ = ninefold.apply_rotary(q, q[:, :, :1])
    assert torch.equal(ninefold.apply_rotary(q), both)
    results = gradients(ninefold.apply_rotary, q, upstreams=(torch.ones_like(q),))
    assert [t.shape for t in results] == [q.shape, q.shape]


def test_inplace(device):
    q, k = queries_and_keys(2, 3, 2, 8, device=device)
    expected = ninefold.apply_rotary(q, k)
    outputs = ninefold.apply_rotary_(q, k)
    assert outputs[0] is q and outputs[1] is k
    assert torch.equal(q, expected[0]) and torch.equal(k, expected[1])


def test_inplace_under_autograd(device):
    packed, upstream = (torch.randn(2, 5, 6, 16, device=device) for _ in range(2))

    def inside(packed):
        packed = packed * 2
        ninefold.apply_rotary_(packed[:, :, :3], packed[:, :, 3:5], offset=4)
        return packed * 3

    def beside(packed):
        packed = packed * 2
        q, k = ninefold.apply_rotary(packed[:, :, :3], packed[:, :, 3:5], offset=4)
        return torch.cat((q, k, packed[:, :, 5:]), 2) * 3

    exact = gradients(beside, packed, upstreams=(upstream,))
    compiled = torch.compile(inside, fullgraph=True, backend="aot_eager")
    for function in (inside, compiled):
        for actual, expected in zip(gradients(function, packed, upstreams=(upstream,)), exact):
            torch.testing.assert_close(actual, expected)
    leaf = packed.clone().requires_grad_()
    for tensor in (leaf, leaf[:, 1:]):
        with pytest.raises(RuntimeError, match="leaf"):
            ninefold.apply_rotary_(tensor)
    assert torch.equal(leaf, packed)
    for grad in (True, False):
        inner = leaf * 2
        squared = inner * inner
        with torch.set_grad_enabled(grad):
            ninefold.apply_rotary_(inner)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squared.sum().backward()


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(device, grad):
    operators = torch.ops.ninefold
    q, k = (t.requires_grad_(grad) for t in queries_and_keys(2, 6, 2, 8, device=device))
    table = torch.rand(20, 3, device=device)
    ids = torch.randint(20, (2, 6), device=device)
    starts = torch.tensor([0, 2, 6], device=device)
    for arguments in [
        (q,),
        (q[..., ::2], k[..., ::2], None, None, None, None, None, 3),
        (q, k, table, table, ids, None, None, 0, False, True, 6),
        (q[:1], k[:1], None, None, None, None, starts),
        (q[:, :0], k[:, :0]),
        (q, q[:, 2:], None, None, None, starts[:2], None, 0, True, False, 4, 500.0,
         [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ]:
        opcheck(operators.rope.default, arguments)
        if not grad:
            opcheck(operators.rope_backward.default, arguments)
            copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
            opcheck(operators.rope_.default, tuple(copies))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_whole_and_once(device, backend):
    def block(q, k, cos, sin):
        scaling = {"rope_type": "linear", "factor": 2}
        a, b = ninefold.apply_rotary(q * 2, k, offset=3, scaling=scaling)
        c, d = ninefold.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
        return a + c, b + d

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for tokens in compiled_once((4, 7, 9)):
        q, k = queries_and_keys(2, tokens, 3, 8, device=device)
        cos, sin = (torch.rand(2, tokens, 8, device=device).bfloat16() for _ in range(2))
        upstreams = tuple(torch.randn_like(t) for t in (q, k))
        for actual, eager in zip(
            gradients(lambda q, k: compiled(q, k, cos, sin), q, k, upstreams=upstreams),
            gradients(lambda q, k: block(q, k, cos, sin), q, k, upstreams=upstreams),
        ):
            torch.testing.assert_close(actual, eager)


def test_autocast_and_inference_mode(device):
    q, k = queries_and_keys(2, 3, 2, 8, dtype=torch.bfloat16, device=device)
    expected = ninefold.apply_rotary(q, k)
    with torch.autocast(device, torch.bfloat16):
        assert all(map(torch.equal, ninefold.apply_rotary(q, k), expected))
    with torch.inference_mode():
        assert all(map(torch.equal, ninefold.apply_rotary(q, k), expected))
        assert all(map(torch.equal, ninefold.apply_rotary_(q.clone(), k.clone()), expected))


def test_wrong_input(device):
    q, k = queries_and_keys(2, 3, 2, 8, device=device)
    table = torch.rand(3, 4, device=device)
    ids = torch.zeros(2, 3, dtype=torch.int64, device=device)
    rotate = ninefold.apply_rotary
    for call in [
        lambda: rotate(q.double(), k.double()),
        lambda: rotate(q, cos=table.double(), sin=table),
        lambda: rotate(q, position_ids=ids.float()),
        lambda: rotate(q, scaling={"rope_type": "dynamic", "factor": 2.0}),
        lambda: rotate(q, scaling={"rope_type": "linear", "factor": 2.0, "beta_fast": 8.0}),
        lambda: rotate(q.requires_grad_(), cos=table.clone().requires_grad_(), sin=table),
        lambda: ninefold.apply_rotary_pos_emb(q, k, ids, ids, unsqueeze_dim=3),
    ]:
        with pytest.raises(NotImplementedError):
            call()
    for call, argument in [
        (lambda: rotate(q, k.bfloat16()), "k"),
        (lambda: rotate(q, k[:, :2]), "k"),
        (lambda: rotate(q[0, 0]), "rank"),
        (lambda: rotate(q, cos=table), "sin"),
        (lambda: rotate(q, cos=table, sin=table, base=500.0), "base"),
        (lambda: rotate(q, rotary_dim=3), "rotary_dim"),
        (lambda: rotate(q, rotary_dim=0), "rotary_dim"),
        (lambda: rotate(q, base=0.0), "base"),
        (lambda: rotate(q, position_ids=ids, offset=ids[:, 0]), "offsets"),
        (lambda: rotate(q, cu_seqlens=ids[0]), "cu_seqlens"),
        (lambda: ninefold.apply_rotary_pos_emb(q, k, q[0], q[0], unsqueeze_dim=2), "tokens"),
        (lambda: ninefold.apply_rotary_(q.detach()[:1].expand(2, -1, -1, -1)), "share memory"),
    ]:
        with pytest.raises(RuntimeError, match=argument):
            call()
    for call in (lambda: rotate([q], k), lambda: rotate(q, offset=1.5)):
        with pytest.raises(TypeError):
            call()
    for options in ({"layout": "sbhd"}, {"scaling": {"rope_type": "linear", "factor": 0}}):
        with pytest.raises(ValueError):
            rotate(q, **options)


def test_a_position_outside_of_the_tables_is_nan(device):
    q, _ = queries_and_keys(1, 3, 2, 8, device=device)
    table = torch.rand(2, 4, device=device)
    y = ninefold.apply_rotary(q, cos=table, sin=table)
    assert y[:, 2].isnan().all() and not y[:, :2].isnan().any()


def test_double_backward_says_no(device):
    q = torch.randn(1, 3, 2, 8, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(ninefold.apply_rotary(q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        grad.sum().backward()


@no_gpu
def test_a_captured_graph_reads_the_positions_of_its_replay():
    q, k = queries_and_keys(2, 1, 3, 8, device="cuda")
    offset = torch.zeros(2, dtype=torch.int64, device="cuda")
    ninefold.apply_rotary(q, k, offset=offset)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = ninefold.apply_rotary(q, k, offset=offset)
    for step in (3, 8):
        offset.fill_(step)
        graph.replay()
        for actual, x in zip(outputs, (q, k)):
            assert_rounded_once(actual, turned(x, angles(offset[:, None], 8)))
