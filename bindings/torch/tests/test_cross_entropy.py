"""cross_entropy against torch's own in float64, its shapes, options and errors."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import captured, no_gpu
from torch.library import opcheck

import ninefold

TOLERANCE = {  # the last rounding, and fp32 arithmetic on logits of size 10
    torch.float32: {"rtol": 2e-6, "atol": 2e-6},
    torch.bfloat16: {"rtol": 2**-8, "atol": 2e-6},
    torch.float16: {"rtol": 2**-11, "atol": 2e-6},
}
SHAPES = [(5, 7), (7,), (3, 5, 4), (2, 3, 4, 2), (2, 3, 2, 2, 2), (6, 1), (0, 4), (3, 1000)]


def logits_and_targets(shape, dtype, device, ignored=True):
    logits = (3 * torch.randn(shape)).to(device, dtype)
    classes = shape[1] if len(shape) > 1 else shape[0]
    target = torch.randint(classes, (*shape[:1], *shape[2:]) if len(shape) > 1 else ())
    if ignored and target.numel() > 1:
        target.view(-1)[1] = -100
    return logits, target.to(device)


def loss_and_gradient(function, logits, *args, upstream=None, **options):
    logits = logits.detach().requires_grad_()
    loss = function(logits, *args, **options)
    if upstream is None:
        upstream = torch.randn(loss.shape).to(loss.device)
    (gradient,) = torch.autograd.grad(loss, logits, upstream.to(loss.dtype))
    return loss.detach(), gradient


def check_against_torch(logits, target, weight=None, **options):
    exact_weight = None if weight is None else weight.double()
    upstream = torch.randn(F.cross_entropy(logits, target, weight, **options).shape).to(logits)
    exact = loss_and_gradient(
        F.cross_entropy, logits.double(), target, exact_weight, upstream=upstream, **options
    )
    got = loss_and_gradient(
        ninefold.cross_entropy, logits, target, weight, upstream=upstream, **options
    )
    for value, reference in zip(got, exact, strict=True):
        assert value.dtype == logits.dtype
        torch.testing.assert_close(
            value.double(), reference, equal_nan=True, **TOLERANCE[logits.dtype]
        )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_torch(device, shape, reduction, dtype):
    check_against_torch(*logits_and_targets(shape, dtype, device), reduction=reduction)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_options_of_torch(device, reduction, smoothing, weighted):
    logits, target = logits_and_targets((9, 5, 3), torch.float32, device, ignored=False)
    weight = torch.rand(5, device=device) + 0.5 if weighted else None
    for ignore_index in (-100, 2):
        check_against_torch(
            logits,
            target,
            weight,
            reduction=reduction,
            label_smoothing=smoothing,
            ignore_index=ignore_index,
        )


@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_deprecated_arguments(device):
    logits, target = logits_and_targets((5, 7), torch.float32, device, ignored=False)
    for arguments in ({"reduce": False}, {"size_average": False}, {"size_average": True}):
        check_against_torch(logits, target, **arguments)
    got = ninefold.cross_entropy(logits, target, None, False, 3)
    torch.testing.assert_close(got, F.cross_entropy(logits, target, None, False, 3))


STRIDED = {
    "sequence first": lambda: torch.randn(4, 2, 8).permute(1, 2, 0),  # B06
    "transposed": lambda: torch.randn(8, 6).t(),
    "every second class": lambda: torch.randn(5, 14)[:, ::2],
    "one row for all": lambda: torch.randn(1, 7).expand(5, 7),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_strides_are_read(device, make):
    logits = make().to(device)
    shape = logits.shape[:1] + logits.shape[2:]
    target = torch.randint(logits.shape[1], (*shape, 2)).to(device)[..., 0]
    for reduction in ("mean", "none"):
        check_against_torch(logits, target, reduction=reduction)


def test_upstream_of_stride_0(device):
    logits, target = logits_and_targets((5, 7), torch.float32, device)
    logits.requires_grad_()
    ninefold.cross_entropy(logits, target, reduction="none").sum().backward()
    got, logits.grad = logits.grad, None
    F.cross_entropy(logits, target, reduction="sum").backward()
    torch.testing.assert_close(got, logits.grad)


def formula(x, target, z_loss=0.0, soft_cap=0.0, scale=1.0, denominator=None):
    z = scale * x
    if soft_cap:
        z = soft_cap * torch.tanh(z / soft_cap)
    lse = z.logsumexp(1)
    loss = lse - z.gather(1, target[:, None])[:, 0] + z_loss * lse**2
    return loss.sum() / (len(target) if denominator is None else denominator)


@pytest.mark.parametrize("options", [
    {"z_loss": 1e-2},
    {"soft_cap": 2.0},
    {"scale": 0.5},
    {"denominator": 17.0},
    {"z_loss": 1e-2, "soft_cap": 2.0, "scale": 1.5, "denominator": 3.0},
], ids=str)  # fmt: skip
def test_options_beyond_torch(device, options):
    logits, target = logits_and_targets((6, 9), torch.float32, device, ignored=False)
    upstream = torch.tensor(1.7)
    exact = loss_and_gradient(formula, logits.double(), target, upstream=upstream, **options)
    got = loss_and_gradient(ninefold.cross_entropy, logits, target, upstream=upstream, **options)
    for value, reference in zip(got, exact, strict=True):
        torch.testing.assert_close(value.double(), reference, **TOLERANCE[torch.float32])


def test_a_denominator_makes_micro_batches_one_batch(device):  # B36
    logits, target = logits_and_targets((12, 5), torch.float32, device)
    target[4:8] = -100  # a micro-batch with nothing in it
    whole = loss_and_gradient(ninefold.cross_entropy, logits, target, upstream=torch.tensor(1.0))
    count = (target != -100).sum()  # stays on its device
    parts = [
        loss_and_gradient(
            ninefold.cross_entropy, x, t, upstream=torch.tensor(1.0), denominator=count
        )
        for x, t in zip(logits.split(4), target.split(4), strict=True)
    ]
    torch.testing.assert_close(sum(loss for loss, _ in parts), whole[0])
    torch.testing.assert_close(torch.cat([gradient for _, gradient in parts]), whole[1])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("targets", [[-100, -100, -100], []])
def test_a_mean_over_nothing_is_nan_and_its_gradient_0(device, targets, smoothing):
    target = torch.tensor(targets, dtype=torch.int64, device=device)
    logits = torch.randn(len(targets), 5, device=device)
    logits[:1] = math.inf  # whatever an ignored row holds
    loss, gradient = loss_and_gradient(
        ninefold.cross_entropy, logits, target, label_smoothing=smoothing
    )
    assert loss.isnan()
    assert gradient.eq(0).all()
    total = ninefold.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
    assert total == 0


def test_a_mean_of_0_is_0(device):
    logits = torch.tensor([[200.0, 0.0], [1.0, 2.0]], device=device)
    assert ninefold.cross_entropy(logits, torch.tensor([0, -100], device=device)) == 0


def test_ignored_rows_change_nothing(device):  # B03
    logits = torch.tensor([[1.0, 2, 3], [3, 1, 0.5]], device=device)
    target = torch.tensor([0, -100], device=device)
    loss = ninefold.cross_entropy(logits, target, label_smoothing=0.2)
    assert loss.item() == pytest.approx(2.207606, abs=1e-6)
    logits = torch.tensor([[1.0, 2], [3, 0.4]], device=device)
    weight = torch.tensor([0.2, 0.3], device=device)
    target = torch.tensor([-100, 1], device=device)
    loss = ninefold.cross_entropy(logits, target, weight, label_smoothing=0.1)
    assert loss.item() == pytest.approx(2.540451, abs=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("wrong", [3, -1, 1000])
def test_a_target_out_of_range(device, wrong, reduction):  # B07
    logits = torch.randn(2, 3, device=device, requires_grad=True)
    target = torch.tensor([0, wrong], device=device)
    if device == "cpu":
        with pytest.raises(IndexError, match="out of bounds"):
            ninefold.cross_entropy(logits, target, reduction=reduction)
        return
    loss = ninefold.cross_entropy(logits, target, reduction=reduction)
    assert loss.isnan().sum() == 1
    loss.sum().backward()
    assert logits.grad[1].isnan().all()


def test_int32_targets(device):
    logits, target = logits_and_targets((5, 7), torch.float32, device)
    assert ninefold.cross_entropy(logits, target.int()) == ninefold.cross_entropy(logits, target)


def test_class_weights_of_another_dtype_and_layout(device):
    logits, target = logits_and_targets((5, 7), torch.bfloat16, device)
    weight = torch.rand(14, device=device)[::2]
    check_against_torch(logits, target, weight.bfloat16())


def test_dtype_and_autocast(device):
    logits, target = logits_and_targets((5, 7), torch.bfloat16, device)
    exact = F.cross_entropy(logits.double(), target).float()
    loss = ninefold.cross_entropy(logits, target, dtype=torch.float32)
    torch.testing.assert_close(loss, exact, **TOLERANCE[torch.float32])
    with torch.autocast(device, torch.bfloat16):
        assert F.cross_entropy(logits, target).dtype == torch.float32
        one_pass = {"loss_scale": 1.0}
        in_place = {"inplace_backward": True}
        for options in ({}, one_pass, in_place, one_pass | in_place):
            x = logits.clone().requires_grad_()
            got = ninefold.cross_entropy(1 * x, target, **options)
            assert torch.equal(got, loss)
            got.backward()
            assert x.grad.dtype == torch.bfloat16


INDICES = torch.tensor([0, 1, 2, 1])
WRONG = {
    "too few targets": lambda f: f(torch.randn(4, 5), INDICES[:3]),
    "targets of rank 2": lambda f: f(torch.randn(4, 5), INDICES.view(4, 1)),
    "targets of another size": lambda f: f(torch.randn(4, 5, 3), torch.zeros(4, 2).long()),
    "no targets per position": lambda f: f(torch.randn(4, 5, 3), INDICES),
    "a scalar for logits": lambda f: f(torch.randn(()), INDICES[0]),
    "indices as probabilities": lambda f: f(torch.randn(4, 5), torch.ones(4, 5).long()),
    "targets on another device": lambda f: f(torch.randn(4, 5), INDICES.to("meta")),
    "no tensor": lambda f: f(torch.randn(4, 5), [0, 1, 2, 1]),
    "weights of another number": lambda f: f(torch.randn(4, 5), INDICES, torch.ones(4)),
    "weights of rank 2": lambda f: f(torch.randn(4, 5), INDICES, torch.ones(5, 1)),
    "weights that want a gradient": lambda f: f(
        torch.randn(4, 5), INDICES, torch.ones(5, requires_grad=True)
    ),
    "smoothing": lambda f: f(torch.randn(4, 5), INDICES, label_smoothing=1.5),
    "reduction": lambda f: f(torch.randn(4, 5), INDICES, reduction="median"),
    "logits of integers": lambda f: f(torch.ones(4, 5).long(), INDICES),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_errors_have_the_type_of_torch(call):
    with pytest.raises(Exception) as of_torch:
        call(F.cross_entropy)
    with pytest.raises(of_torch.type) as ours:
        call(ninefold.cross_entropy)
    assert ours.type is of_torch.type
    assert len(str(ours.value)) > 20


@pytest.mark.parametrize("call, named", [
    (lambda: ninefold.cross_entropy(torch.randn(4, 5), torch.rand(4, 5)), "target"),
    (lambda: ninefold.cross_entropy(torch.randn(4, 5).double(), INDICES), "logits"),
    (lambda: ninefold.cross_entropy(torch.randn(4, 5), INDICES, scale=0.0), "scale"),
    (lambda: ninefold.cross_entropy(torch.randn(4, 5), INDICES.to(torch.uint8)), "targets"),
])  # fmt: skip
def test_what_is_not_supported_is_named(call, named):
    with pytest.raises(NotImplementedError, match=named):
        call()


def test_the_module_is_a_drop_in(device):
    weight = torch.rand(7)
    mine = ninefold.CrossEntropyLoss(weight, ignore_index=2, reduction="sum", label_smoothing=0.1)
    theirs = torch.nn.CrossEntropyLoss(weight, ignore_index=2, reduction="sum", label_smoothing=0.1)
    mine.load_state_dict(theirs.state_dict())
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    assert repr(mine) == repr(theirs)
    logits, target = logits_and_targets((5, 7), torch.float32, device, ignored=False)
    torch.testing.assert_close(mine.to(device)(logits, target), theirs.to(device)(logits, target))
    capped = ninefold.CrossEntropyLoss(z_loss=0.1, soft_cap=2.0, scale=0.5, dtype=torch.float32)
    expected = ninefold.cross_entropy(
        logits, target, z_loss=0.1, soft_cap=2.0, scale=0.5, denominator=3.0
    )
    assert torch.equal(capped(logits, target, denominator=3.0), expected)


def test_opcheck(device):
    logits, target = logits_and_targets((3, 5, 2), torch.float32, device)
    weight = torch.rand(5, device=device)
    ops = torch.ops.ninefold
    for x in (logits, logits.clone().requires_grad_(), logits.bfloat16()):
        opcheck(ops.cross_entropy.default, (x, target))
        opcheck(ops.cross_entropy.default, (x, target, weight, 0, -100, 0.1, 0.1, 5.0, 2.0))
    opcheck(ops.cross_entropy_train.default, (logits, target, weight, 2))
    lse = ops.cross_entropy_train(logits, target)[1]
    one = torch.ones((), device=device)
    opcheck(ops.cross_entropy_backward.default, (one, logits, target, None, lse))


def test_compiled(device):
    @torch.compile(fullgraph=True, dynamic=True)
    def compiled(x, target, weight):
        return ninefold.cross_entropy(2 * x, target, weight, label_smoothing=0.1, z_loss=1e-3)

    def eager(x, target, weight):
        return ninefold.cross_entropy(2 * x, target, weight, label_smoothing=0.1, z_loss=1e-3)

    for shape in ((5, 7), (9, 7)):
        logits, target = logits_and_targets(shape, torch.float32, device)
        args = logits, target, torch.rand(7, device=device)
        with torch.compiler.set_stance("default" if shape[0] == 5 else "fail_on_recompile"):
            got = loss_and_gradient(compiled, *args, upstream=torch.tensor(1.3))
        expected = loss_and_gradient(eager, *args, upstream=torch.tensor(1.3))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_double_backward_is_refused(device):
    logits, target = logits_and_targets((5, 7), torch.float32, device)
    logits.requires_grad_()
    loss = ninefold.cross_entropy(logits, target)
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        gradient.sum().backward()


def test_what_is_kept_for_the_backward(device):
    logits, target = logits_and_targets((64, 50), torch.bfloat16, device)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ninefold.cross_entropy(logits.requires_grad_(), target)
    given = {logits.data_ptr(), target.data_ptr()}
    assert sum(t.nbytes for t in kept if t.data_ptr() not in given) == 64 * 4


@no_gpu
def test_no_synchronisation_and_captured_by_a_graph():
    logits, target = logits_and_targets((64, 1000), torch.bfloat16, "cuda")
    logits.requires_grad_()

    def step():
        loss = ninefold.cross_entropy(logits, target)
        return loss, *torch.autograd.grad(loss, logits)

    graph, results = captured(step)
    with torch.no_grad():
        logits.normal_()
        target.random_(1000)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(results, step(), strict=True))
