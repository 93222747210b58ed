"""cross_entropy whose gradient is made over the logits, or in the forward: `inplace_backward` and
`loss_scale`."""

import pytest
import torch
import torch.nn.functional as F
from conftest import captured, no_gpu
from torch.library import opcheck

import ninefold

WAYS = {
    "fresh": {},
    "in place": {"inplace_backward": True},
    "one pass": {"loss_scale": 1.0},
    "one pass in place": {"inplace_backward": True, "loss_scale": 1.0},
}
IN_PLACE = {name: way for name, way in WAYS.items() if "in place" in name}
ONE_PASS = {name: way for name, way in WAYS.items() if "one pass" in name}


def leaf_and_target(device, dtype=torch.float32, shape=(6, 9)):
    leaf = torch.randn(shape).to(device, dtype).requires_grad_()
    target = torch.randint(shape[1], (shape[0], *shape[2:]), device=device)
    target.view(-1)[1] = -100
    return leaf, target


def exact_gradient(leaf, target, upstream=1.0, **options):
    x = leaf.detach().double().requires_grad_()
    loss = F.cross_entropy(x, target, **options)
    return torch.autograd.grad(loss, x, torch.full_like(loss, upstream))[0]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(6, 9), (3, 5, 4)], ids=str)
def test_every_way_has_the_same_gradient(device, shape, dtype, way):
    leaf, target = leaf_and_target(device, dtype, shape)
    for reduction in ("mean", "sum"):
        loss = ninefold.cross_entropy(1 * leaf, target, reduction=reduction, **way)
        (gradient,) = torch.autograd.grad(loss, leaf)
        exact = exact_gradient(leaf, target, reduction=reduction)
        tolerance = {"rtol": torch.finfo(dtype).eps, "atol": 1e-6}
        torch.testing.assert_close(gradient.double(), exact, **tolerance)
        expected = F.cross_entropy(leaf.double(), target, reduction=reduction)
        torch.testing.assert_close(loss.double(), expected, **tolerance)


@pytest.mark.parametrize("way", [WAYS["fresh"], WAYS["in place"]], ids=["fresh", "in place"])
def test_any_upstream_gradient(device, way):
    leaf, target = leaf_and_target(device)
    for upstream in (0.0, -3.0, 1e6):
        (ninefold.cross_entropy(1 * leaf, target, **way) * upstream).backward()
        got, leaf.grad = leaf.grad, None
        exact = exact_gradient(leaf, target, upstream)
        torch.testing.assert_close(got.double(), exact, rtol=2e-6, atol=1e-7 * abs(upstream))
    weights = torch.arange(1.0, 7, device=device)  # B08: a gradient for each token
    loss = weights @ ninefold.cross_entropy(1 * leaf, target, reduction="none", **way)
    (got,) = torch.autograd.grad(loss, leaf)
    (weights @ F.cross_entropy(leaf, target, reduction="none")).backward()
    torch.testing.assert_close(got, leaf.grad)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_a_loss_scale_that_is_known(device, on_device, in_place):
    leaf, target = leaf_and_target(device, torch.float16)
    scale = torch.tensor(2.0**14, device=device) if on_device else 2.0**14
    loss = ninefold.cross_entropy(
        1 * leaf, target, dtype=torch.float32, inplace_backward=in_place, loss_scale=scale
    )
    (loss * scale).backward()
    exact = exact_gradient(leaf, target, 2.0**14)
    torch.testing.assert_close(leaf.grad.double(), exact, rtol=2**-10, atol=1e-4)


@pytest.mark.parametrize("way", ONE_PASS.values(), ids=ONE_PASS)
def test_a_broken_promise_is_noticed(way):  # on CUDA by an assertion that ends the process
    leaf, target = leaf_and_target("cpu")
    loss = ninefold.cross_entropy(1 * leaf, target, **way)
    with pytest.raises(RuntimeError, match="loss_scale"):
        (2 * loss).backward()
    assert leaf.grad is None
    with pytest.raises(NotImplementedError, match="loss_scale"):
        ninefold.cross_entropy(1 * leaf, target, reduction="none", **way)


@pytest.mark.parametrize("way", [WAYS["fresh"], WAYS["one pass"]], ids=["fresh", "one pass"])
def test_logits_stay_as_they_are(device, way):  # B05
    leaf, target = leaf_and_target(device)
    logits = 1 * leaf
    before = logits.detach().clone()
    loss = ninefold.cross_entropy(logits, target, **way) + (logits.softmax(1) ** 2).sum()
    (first,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    (second,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(logits, before)
    assert torch.equal(first, second)
    x = leaf.detach().double().requires_grad_()
    (F.cross_entropy(x, target) + (x.softmax(1) ** 2).sum()).backward()
    torch.testing.assert_close(first.double(), x.grad, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("way", IN_PLACE.values(), ids=IN_PLACE)
def test_in_place_nothing_of_the_logits_size_is_added(device, way):
    leaf, target = leaf_and_target(device)
    logits = 1 * leaf
    received = []
    logits.register_hook(received.append)
    ninefold.cross_entropy(logits.view(6, 9), target, **way).backward()
    assert received[0].data_ptr() == logits.data_ptr()
    assert torch.equal(received[0], leaf.grad)
    assert not received[0].requires_grad


@pytest.mark.parametrize("way", IN_PLACE.values(), ids=IN_PLACE)
def test_autograd_notices_what_was_overwritten(device, way):  # B05
    leaf, target = leaf_and_target(device)
    logits = 1 * leaf
    other = (logits**2).sum()  # saves logits
    ninefold.cross_entropy(logits, target, **way).backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


def test_a_second_backward_in_place_is_refused(device):
    leaf, target = leaf_and_target(device)
    loss = ninefold.cross_entropy(1 * leaf, target, inplace_backward=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("way", IN_PLACE.values(), ids=IN_PLACE)
def test_nothing_is_overwritten_without_a_gradient(device, way):
    leaf, target = leaf_and_target(device)
    logits = leaf.detach().clone()
    ninefold.cross_entropy(logits, target, **way)
    with torch.no_grad():
        ninefold.cross_entropy(leaf, target, **way)
    assert torch.equal(logits, leaf)
    with pytest.raises(RuntimeError, match="leaf"):
        ninefold.cross_entropy(leaf, target, **way)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_double_backward_is_refused(device, way):
    leaf, target = leaf_and_target(device)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        loss = ninefold.cross_entropy(1 * leaf, target, **way)
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
        gradient.sum().backward()


@pytest.mark.parametrize("way", ONE_PASS.values(), ids=ONE_PASS)
def test_only_the_input_has_a_gradient(device, way):
    leaf, target = leaf_and_target(device)
    weight = torch.ones(9, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="no gradient but that of input"):
        ninefold.cross_entropy(1 * leaf, target, weight, **way)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_compiled(device, way):
    def loss_of(hidden, head, target):
        return ninefold.cross_entropy((hidden @ head).view(-1, 9), target, **way)

    compiled = torch.compile(loss_of, fullgraph=True, dynamic=True)
    for rows in (6, 10):
        hidden = torch.randn(rows, 4, device=device, requires_grad=True)
        head = torch.randn(4, 9, device=device, requires_grad=True)
        target = torch.randint(9, (rows,), device=device)
        with torch.compiler.set_stance("default" if rows == 6 else "fail_on_recompile"):
            loss = compiled(hidden, head, target)
            got = torch.autograd.grad(loss, (hidden, head))
        expected_loss = loss_of(hidden, head, target)
        torch.testing.assert_close(loss, expected_loss)
        expected = torch.autograd.grad(expected_loss, (hidden, head))
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b)


def test_opcheck(device):
    leaf, target = leaf_and_target(device)
    weight = torch.rand(9, device=device)
    ops, one = torch.ops.ninefold, torch.ones((), device=device)
    scale = torch.full((), 3.0, device=device)
    logits = leaf.detach()
    opcheck(ops.cross_entropy_forward_backward.default, (leaf, target, None, weight))
    opcheck(ops.cross_entropy_forward_backward.default, (logits, target, scale, weight, 2))
    opcheck(ops.cross_entropy_forward_backward_.default, (logits.clone(), target))
    lse = ops.cross_entropy_train(logits, target)[1]
    opcheck(ops.cross_entropy_backward_.default, (one, logits.clone(), target, None, lse))
    opcheck(ops.cross_entropy_backward.default, (lse, logits, target, weight, lse, 0))


@no_gpu
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_no_synchronisation_and_captured_by_a_graph(way):
    leaf, target = leaf_and_target("cuda", torch.bfloat16, (64, 1000))

    def step():
        loss = ninefold.cross_entropy(1 * leaf, target, **way)
        return loss, *torch.autograd.grad(loss, leaf)

    graph, results = captured(step)
    with torch.no_grad():
        leaf.normal_()
        target.random_(1000)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(results, step(), strict=True))
