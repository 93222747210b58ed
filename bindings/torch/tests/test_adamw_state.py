"""ninefold.AdamW as an optimizer of torch: state_dict, GradScaler, closures, hooks, arguments."""

import copy
import io
import pickle

import pytest
import torch

import ninefold


def train(optimizer, params, steps, first=0):
    """Steps whose gradients depend on their number alone."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        for p in params:
            gradient = torch.randn(p.shape, generator=generator)
            p.grad = gradient.to(p.device, p.dtype)
        optimizer.step()


def model(device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
        for shape in ((5, 3), (7,), ())
    ]


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_the_state_dict_is_that_of_torch(device):
    mine, theirs = model(device), model(device)
    a, b = ninefold.AdamW(mine), torch.optim.AdamW(theirs)
    assert a.state_dict()["state"] == {}
    train(a, mine, 3)
    train(b, theirs, 3)
    state, reference = a.state_dict(), b.state_dict()
    assert state["state"].keys() == reference["state"].keys()
    for i, values in reference["state"].items():
        assert state["state"][i].keys() == values.keys()
        for name, value in values.items():
            got = state["state"][i][name]
            assert (got.dtype, got.device, got.shape) == (value.dtype, value.device, value.shape)
            torch.testing.assert_close(got, value)
    for group, expected in zip(state["param_groups"], reference["param_groups"], strict=True):
        assert expected.items() <= group.items()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("classes", [
    (torch.optim.AdamW, ninefold.AdamW),
    (ninefold.AdamW, torch.optim.AdamW),
], ids=["from torch", "to torch"])  # fmt: skip
def test_a_state_dict_goes_over(device, classes, fused):
    first, second, whole = model(device), model(device), model(device)
    before = classes[0](first, lr=1e-2, weight_decay=0.3, betas=(0.8, 0.9), fused=fused)
    train(before, first, 5)
    after = classes[1](second)
    with torch.no_grad():
        for p, q in zip(second, first, strict=True):
            p.copy_(q)
    after.load_state_dict(saved_and_loaded(before.state_dict()))
    train(after, second, 5, first=5)
    train(torch.optim.AdamW(whole, lr=1e-2, weight_decay=0.3, betas=(0.8, 0.9)), whole, 10)
    for p, q in zip(second, whole, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [
    {},
    {"max_norm": 0.5},
    {"dtype": torch.bfloat16, "master_weights": True},
    {"dtype": torch.bfloat16, "stochastic_rounding": True},
], ids=str)  # fmt: skip
def test_resumed_is_uninterrupted(device, options):  # B37
    options = dict(options)
    dtype = options.pop("dtype", torch.float32)
    whole, first, second = (model(device, dtype) for _ in range(3))

    def optimizer(params, seed):
        torch.manual_seed(seed)  # stochastic rounding: a new process draws another seed
        return ninefold.AdamW(params, lr=1e-2, **options)

    uninterrupted = optimizer(whole, 1)
    train(uninterrupted, whole, 20)
    before = optimizer(first, 1)
    train(before, first, 10)
    after = optimizer(second, 2)
    with torch.no_grad():
        for p, q in zip(second, first, strict=True):
            p.copy_(q)
    after.load_state_dict(saved_and_loaded(before.state_dict()))
    train(after, second, 10, first=10)
    assert all(torch.equal(p, q) for p, q in zip(second, whole, strict=True))
    for p, q in zip(second, whole, strict=True):
        for name, value in uninterrupted.state[q].items():
            assert torch.equal(after.state[p][name], value)


def test_parameters_at_different_steps_are_restored(device):
    params = model(device)
    optimizer = ninefold.AdamW(params)
    train(optimizer, params[:1], 2)
    train(optimizer, params, 3)
    again = ninefold.AdamW(params)
    again.load_state_dict(optimizer.state_dict())
    assert [int(again.state[p]["step"]) for p in params] == [5, 3, 3]
    assert again.state[params[1]]["step"] is again.state[params[2]]["step"]


@pytest.mark.parametrize("duplicate", [
    copy.deepcopy,
    lambda o: pickle.loads(pickle.dumps(o)),
], ids=["deepcopy", "pickle"])  # fmt: skip
def test_copies_go_on_alike(device, duplicate):
    params = model(device)
    optimizer = ninefold.AdamW(params, lr=1e-2, max_norm=0.1)
    train(optimizer, params, 3)
    other = duplicate(optimizer)
    copies = other.param_groups[0]["params"]
    train(optimizer, params, 3, first=3)
    train(other, copies, 3, first=3)
    assert all(torch.equal(p, q) for p, q in zip(params, copies, strict=True))
    assert torch.equal(other.grad_norm, optimizer.grad_norm)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_grad_scaler(device, max_norm, unscale):
    mine, theirs = model(device), model(device)
    x = torch.randn(3, device=device)
    a = ninefold.AdamW(mine, lr=1e-2, max_norm=max_norm)
    b = torch.optim.AdamW(theirs, lr=1e-2)
    scalers = [torch.amp.GradScaler(device, init_scale=2.0**10) for _ in "ab"]
    for step in range(6):
        for params, optimizer, scaler in zip((mine, theirs), (a, b), scalers, strict=True):
            optimizer.zero_grad()
            loss = ((params[0] @ x).sum() + params[1].square().sum()) * params[2]
            if step == 3:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            if unscale or optimizer is b:
                scaler.unscale_(optimizer)
            if optimizer is b and max_norm is not None:
                torch.nn.utils.clip_grad_norm_(params, max_norm)
            scaler.step(optimizer)
            scaler.update()
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0**9
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        assert a.state[p]["step"] == 5  # the skipped one is not counted


def test_closure_and_hooks(device):
    params = model(device)
    optimizer = ninefold.AdamW(params)
    seen = []
    optimizer.register_step_pre_hook(lambda *args: seen.append("before"))
    optimizer.register_step_post_hook(lambda *args: seen.append("after"))

    def closure():
        optimizer.zero_grad()
        loss = sum(p.square().sum() for p in params)
        loss.backward()
        return loss

    before = closure().item()
    assert optimizer.step(closure).item() == before
    assert closure().item() < before
    assert seen == ["before", "after"]
    optimizer.zero_grad()
    optimizer.step()  # nothing has a gradient
    assert all(optimizer.state[p]["step"] == 1 for p in params)


@pytest.mark.parametrize("options, named", [
    ({"amsgrad": True}, "amsgrad"),
    ({"maximize": True}, "maximize"),
    ({"differentiable": True}, "differentiable"),
    ({"betas": (torch.tensor(0.9), torch.tensor(0.999))}, "betas"),
    ({"eps": 0.0}, "eps"),
])  # fmt: skip
def test_what_is_not_supported_is_named(options, named):
    params = model("cpu")
    with pytest.raises(NotImplementedError, match=named):
        ninefold.AdamW(params, **options)
    with pytest.raises(NotImplementedError, match=named):
        ninefold.AdamW([{"params": params, **options}])
    if named in ("amsgrad", "maximize"):
        theirs = torch.optim.AdamW(params, **options)
        mine = ninefold.AdamW(params)
        with pytest.raises(NotImplementedError, match=named):
            mine.load_state_dict(theirs.state_dict())
        assert not mine.param_groups[0][named]


@pytest.mark.parametrize("options", [
    {"lr": -1.0},
    {"lr": torch.ones(2)},
    {"eps": -1e-8},
    {"betas": (1.0, 0.999)},
    {"betas": (0.9, -0.1)},
    {"weight_decay": -1.0},
    {"foreach": True, "fused": True},
], ids=str)  # fmt: skip
def test_errors_have_the_type_of_torch(options):
    params = model("cpu")
    with pytest.raises(Exception) as of_torch:
        torch.optim.AdamW(params, **options)
    with pytest.raises(of_torch.type) as ours:
        ninefold.AdamW(params, **options)
    assert ours.type is of_torch.type


def test_a_wrong_max_norm():
    for max_norm in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="max_norm"):
            ninefold.AdamW(model("cpu"), max_norm=max_norm)


def test_arguments_that_choose_torchs_implementation(device):
    expected = model(device)
    train(ninefold.AdamW(expected), expected, 3)
    for options in ({"foreach": True}, {"capturable": True}, {"fused": True}):
        params = model(device)
        train(ninefold.AdamW(params, **options), params, 3)
        assert all(torch.equal(p, q) for p, q in zip(params, expected, strict=True))
