"""ninefold.AdamW against torch.optim.AdamW: the update, groups, clipping, 16-bit parameters."""

import copy
import math

import pytest
import torch
from conftest import captured, no_gpu
from torch.library import opcheck

import ninefold
from ninefold.ops import adamw

SHAPES = [(17, 5), (33,), (), (3, 0), (2, 3, 4)]


def parameters(device, dtype=torch.float32, shapes=SHAPES):
    return [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]


def copies(params, dtype=None):
    return [p.detach().to(dtype or p.dtype, copy=True).requires_grad_() for p in params]


def set_gradients(*lists, scale=1.0, skip=()):
    """Random gradients, the same for each list."""
    for i, same in enumerate(zip(*lists, strict=True)):
        gradient = scale * torch.randn(same[0].shape, device=same[0].device)
        for p in same:
            p.grad = None if i in skip else gradient.to(p.dtype)


def check_close(params, exact, steps):
    """Each step rounds p once, by half its last place, and its terms, which are smaller."""
    for p, reference in zip(params, exact, strict=True):
        largest = max(reference.abs().max().item(), 1.0) if p.numel() else 0.0
        torch.testing.assert_close(
            p.double(), reference.double(), rtol=0.0, atol=steps * largest * 2**-23
        )


def launches(monkeypatch):
    """The calls of the operator from here on, each as its list of parameters."""
    calls, step = [], adamw._step
    monkeypatch.setattr(adamw, "_step", lambda *args: calls.append(args[0]) or step(*args))
    return calls


def test_50_steps_as_torch(device, monkeypatch):
    mine = parameters(device)
    theirs, exact = copies(mine), copies(mine, torch.float64)
    optimizers = [
        ninefold.AdamW(mine, lr=1e-2, weight_decay=0.1),
        torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.1),
        torch.optim.AdamW(exact, lr=1e-2, weight_decay=0.1),
    ]
    calls = launches(monkeypatch)
    for step in range(50):
        set_gradients(mine, theirs, exact)
        before = [p.grad.clone() for p in mine]
        for optimizer in optimizers:
            optimizer.step()
        assert len(calls) == step + 1
        assert all(torch.equal(p.grad, g) for p, g in zip(mine, before, strict=True))
    check_close(mine, exact, 50)
    check_close(mine, theirs, 100)  # torch rounds too
    for p, q in zip(mine, exact, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            value, reference = optimizers[0].state[p][name], optimizers[2].state[q][name]
            torch.testing.assert_close(value.double(), reference, rtol=1e-5, atol=1e-7)


def test_groups(device, monkeypatch):
    mine = parameters(device, shapes=[(5,), (6,), (7,), (8,)])
    exact = copies(mine, torch.float64)

    def groups(p):
        return [
            {"params": p[:1], "lr": 1e-2},
            {"params": p[1:2], "weight_decay": 0.0},
            {"params": p[2:3], "lr": 0.0},
            {"params": p[3:], "betas": (0.0, 0.95), "eps": 1e-6},
        ]

    optimizers = ninefold.AdamW(groups(mine)), torch.optim.AdamW(groups(exact))
    calls = launches(monkeypatch)
    for _ in range(10):
        set_gradients(mine, exact)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.param_groups[1]["lr"] *= 0.9
    check_close(mine, exact, 10)
    assert torch.equal(mine[2], exact[2].float())
    assert [len(params) for params in calls] == [3, 1] * 10  # other betas, another launch


def test_a_group_that_comes_later(device):
    mine = parameters(device, shapes=[(5,), (6,)])
    exact = copies(mine, torch.float64)
    optimizers = ninefold.AdamW(mine[:1]), torch.optim.AdamW(exact[:1])
    for step in range(6):
        if step == 3:
            for optimizer, params in zip(optimizers, (mine, exact), strict=True):
                optimizer.add_param_group({"params": params[1:], "lr": 0.1})
        set_gradients(mine, exact)
        for optimizer in optimizers:
            optimizer.step()
    check_close(mine, exact, 6)


def test_parameters_without_a_gradient_are_left_out(device, monkeypatch):
    mine = parameters(device, shapes=[(4,)] * 4)
    exact = copies(mine, torch.float64)
    optimizers = ninefold.AdamW(mine, lr=1e-2), torch.optim.AdamW(exact, lr=1e-2)
    calls = launches(monkeypatch)
    skipped = [(3,), (3,), (0,), (), (1, 2), (), (0, 1, 2, 3), ()]
    for skip in skipped:
        set_gradients(mine, exact, skip=skip)
        for optimizer in optimizers:
            optimizer.step()
    check_close(mine, exact, len(skipped))
    for p, q in zip(mine, exact, strict=True):
        assert optimizers[0].state[p]["step"] == optimizers[1].state[q]["step"]
    # Each launch counts its own steps.
    assert [len(params) for params in calls[:5]] == [3, 3, 2, 1, 1]


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_a_tensor_for_lr(device, where):
    mine = parameters(device)
    exact = copies(mine, torch.float64)
    lr = torch.tensor(1e-2, device=device if where == "device" else "cpu")
    optimizers = ninefold.AdamW(mine, lr=lr), torch.optim.AdamW(exact, lr=1e-2)
    for _ in range(5):
        set_gradients(mine, exact)
        for optimizer in optimizers:
            optimizer.step()
        lr *= 0.5
        optimizers[1].param_groups[0]["lr"] *= 0.5
    check_close(mine, exact, 5)


def test_a_scheduler(device):
    mine = parameters(device)
    exact = copies(mine, torch.float64)
    optimizers = ninefold.AdamW(mine, lr=1e-2), torch.optim.AdamW(exact, lr=1e-2)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=8) for o in optimizers]
    for _ in range(8):
        set_gradients(mine, exact)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            if schedule.last_epoch < 7:
                schedule.step()
    check_close(mine, exact, 8)


def test_the_rule_to_the_letter(device):
    p = torch.zeros(1, device=device, requires_grad=True)  # B33: eps outside the corrected root
    p.grad = torch.full_like(p, 1e-8)
    ninefold.AdamW([p], lr=1.0, weight_decay=0.0).step()
    assert p.item() == pytest.approx(-0.5, rel=1e-5)
    p = torch.ones(1, device=device, requires_grad=True)
    p.grad = torch.zeros_like(p)
    ninefold.AdamW([p], lr=0.1, weight_decay=0.1).step()
    assert p.item() == pytest.approx(0.99, rel=1e-6)
    p = torch.ones(1, device=device, requires_grad=True)  # B32: the count of steps
    optimizer = ninefold.AdamW([p], weight_decay=0.0)
    for _ in range(1000):
        p.grad = torch.full_like(p, 0.1)
        optimizer.step()
    assert abs(p.item()) < 1e-4


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping(device, max_norm, several, monkeypatch):
    mine = parameters(device)
    exact = copies(mine, torch.float64)

    def groups(p):
        betas = (0.8, 0.99) if several else (0.9, 0.999)
        return [{"params": p[:2]}, {"params": p[2:], "betas": betas}]

    optimizer = ninefold.AdamW(groups(mine), lr=1e-2, max_norm=max_norm)
    reference = torch.optim.AdamW(groups(exact), lr=1e-2)
    calls = launches(monkeypatch)
    for _ in range(5):
        set_gradients(mine, exact, scale=3.0)
        optimizer.step()
        norm = torch.nn.utils.clip_grad_norm_(exact, max_norm)
        reference.step()
        torch.testing.assert_close(optimizer.grad_norm.double(), norm, rtol=1e-6, atol=0.0)
    check_close(mine, exact, 5)
    assert len(calls) == (10 if several else 5)


@pytest.mark.parametrize("several", [False, True])
def test_a_norm_that_is_not_finite_skips_the_step(device, several):
    mine = parameters(device, shapes=[(5,), (6,)])
    betas = (0.8, 0.99) if several else (0.9, 0.999)
    optimizer = ninefold.AdamW(
        [{"params": mine[:1]}, {"params": mine[1:], "betas": betas}], max_norm=math.inf
    )
    set_gradients(mine)
    optimizer.step()
    before = copies(mine)
    mine[0].grad[2] = math.nan
    optimizer.step()
    assert optimizer.grad_norm.isnan()
    assert all(torch.equal(p, q) for p, q in zip(mine, before, strict=True))
    assert all(optimizer.state[p]["step"] == 1 for p in mine)
    mine[0].grad.zero_()
    optimizer.step()
    assert not torch.equal(mine[1], before[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_master_weights(device, dtype):
    mine = parameters(device, dtype)
    mine.append(torch.randn(3, device=device, requires_grad=True))  # fp32 needs none
    exact = copies(mine, torch.float64)
    optimizers = ninefold.AdamW(mine, master_weights=True), torch.optim.AdamW(exact)
    for _ in range(20):
        set_gradients(mine, exact)
        for p, q in zip(mine, exact, strict=True):
            q.grad = p.grad.double()
        for optimizer in optimizers:
            optimizer.step()
    state = optimizers[0].state
    check_close([state[p]["master"] for p in mine[:-1]], exact[:-1], 20)
    check_close(mine[-1:], exact[-1:], 20)
    assert all(torch.equal(p, state[p]["master"].to(dtype)) for p in mine[:-1])
    assert "master" not in state[mine[-1]]


def test_master_weights_of_one_group(device):
    mine = [torch.ones(300, device=device, dtype=torch.bfloat16).requires_grad_() for _ in "ab"]
    groups = [{"params": mine[:1], "master_weights": True}, {"params": mine[1:]}]
    optimizer = ninefold.AdamW(groups, stochastic_rounding=True)
    set_gradients(mine)
    optimizer.step()
    assert [("master" in optimizer.state[p]) for p in mine] == [True, False]


def test_stochastic_rounding(device):
    def trained(seed):
        torch.manual_seed(seed)
        p = torch.ones(20000, device=device, dtype=torch.bfloat16).requires_grad_()
        optimizer = ninefold.AdamW([p], weight_decay=0.0, stochastic_rounding=True)
        for _ in range(10):
            p.grad = torch.ones_like(p)
            optimizer.step()
        return p.detach()

    p = trained(1)  # a step of 0.001 below 1, where bf16 has steps of 0.0039
    assert p.double().mean().item() == pytest.approx(0.99, abs=5 * 0.0039 / math.sqrt(20000))
    assert p.unique().numel() > 2
    assert torch.equal(p, trained(1))
    assert not torch.equal(p, trained(2))


def test_two_launches_round_by_other_numbers(device):
    mine = [torch.ones(512, dtype=torch.bfloat16, device=device).requires_grad_() for _ in "ab"]
    groups = [{"params": mine[:1]}, {"params": mine[1:], "eps": 2e-8}]
    optimizer = ninefold.AdamW(groups, weight_decay=0.0, stochastic_rounding=True)
    for p in mine:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert not torch.equal(*mine)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_dtype_that_is_not_supported(dtype):
    p = torch.ones(3, dtype=dtype, requires_grad=True)
    p.grad = torch.ones_like(p)
    with pytest.raises(NotImplementedError, match="param: expected fp32"):
        ninefold.AdamW([p]).step()
    assert torch.equal(p, torch.ones_like(p))


def test_strides_that_are_not_supported():
    p = torch.ones(3, 4).t().requires_grad_()
    p.grad = torch.ones(4, 3)
    with pytest.raises(NotImplementedError, match="contiguous"):
        ninefold.AdamW([p]).step()


def test_autograd_notices_the_step(device):
    p = torch.randn(3, device=device, requires_grad=True)
    loss = (p**2).sum()
    p.grad = torch.ones_like(p)
    ninefold.AdamW([p]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def operator_arguments(device):
    params = [torch.randn(shape, device=device) for shape in ((3, 4), (5,))]
    lists = [[torch.rand_like(p) for p in params] for _ in range(3)]
    step = torch.zeros((), dtype=torch.int64, device=device)
    return [params, *lists, [], step, [1e-3, 1e-2], [0.0, 0.1]]


def test_opcheck(device):
    args = operator_arguments(device)
    opcheck(torch.ops.ninefold.adamw_.default, (*args,))
    opcheck(torch.ops.ninefold.adamw_.default, (*args, 0.9, 0.99, 1e-8, None, None, None, 1.0))
    params = [p.bfloat16() for p in args[0]]
    masters = args[0]
    one = torch.ones((), device=device)
    opcheck(
        torch.ops.ninefold.adamw_.default,
        (params, *args[1:4], masters, *args[5:], 0.9, 0.99, 1e-8, one, one, one),
    )
    opcheck(
        torch.ops.ninefold.adamw_.default,
        (params, *args[1:], 0.9, 0.99, 1e-8, one, one, None, 0.0, 7),
    )


def test_compiled(device):
    @torch.compile(fullgraph=True, dynamic=True)
    def step(*args):
        return torch.ops.ninefold.adamw_(*args, 0.9, 0.999, 1e-8, None, None, None, 1.0)

    args = operator_arguments(device)
    same = copy.deepcopy(args)
    norm = step(*args)
    expected = torch.ops.ninefold.adamw_(*same, 0.9, 0.999, 1e-8, None, None, None, 1.0)
    assert torch.equal(norm, expected)
    assert args[5] == 1
    assert all(torch.equal(a, b) for x, y in zip(args, same[:4]) for a, b in zip(x, y))


def test_a_compiled_training_step(device):
    mine = torch.nn.Linear(4, 4).to(device)
    theirs = copy.deepcopy(mine)
    a, b = ninefold.AdamW(mine.parameters()), torch.optim.AdamW(theirs.parameters())

    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for x in torch.randn(3, 5, 4, device=device):
        torch.compile(step, backend="eager")(mine, a, x)  # what matters is the tracing
        step(theirs, b, x)
    torch.testing.assert_close(mine.weight, theirs.weight, rtol=1e-5, atol=1e-6)


@no_gpu
@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}, {"lr": "tensor"}], ids=str)
def test_no_synchronisation_and_captured_by_a_graph(options):
    lr = torch.tensor(1e-2, device="cuda") if "lr" in options else 1e-2
    mine = parameters("cuda")
    exact = copies(mine, torch.float64)
    optimizer = ninefold.AdamW(mine, **{**options, "lr": lr})
    reference = torch.optim.AdamW(exact, lr=1e-2)
    set_gradients(mine, exact)
    graph, _ = captured(optimizer.step)
    for _ in range(3):
        graph.replay()
    if "max_norm" in options:
        torch.nn.utils.clip_grad_norm_(exact, 1.0)
    for _ in range(4):
        reference.step()
    check_close(mine, exact, 4)
    assert optimizer.state[mine[0]]["step"] == 4
