"""ninefold.ab: two trainings that differ by the swap alone, and figures that say by how much."""

import random
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tiny_models import LAYERS, batch, tiny
from torch import nn

import ninefold
from ninefold.swap.timing import Spread, spread, verdict
from ninefold.swap.training import Training

ROWS, TOKENS, HIDDEN, INTERMEDIATE = 2, 13, 32, 40
compare = partial(ninefold.ab, steps=6, warmup=1)


def test_the_same_training_twice_but_for_rounding(device):
    model = tiny("llama").to(device)
    result = compare(model, batch(device=device))
    assert len(result.steps.without) == len(result.steps.swapped) == 6
    assert result.steps.without[-1].loss < 0.98 * result.first.without.loss
    assert 0 < max(result.loss_differences) < 1e-5
    assert result.kept_bytes.swapped < result.kept_bytes.without
    assert result.ratio.low <= result.ratio.middle <= result.ratio.high


def test_the_steps_are_those_of_a_plain_loop():
    model, result = tiny("llama"), compare(tiny("llama"), batch())
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    for _ in range(7):
        optimizer.zero_grad()
        loss = model(**batch()).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [result.first.without.loss, *(step.loss for step in result.steps.without)] == losses


class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return SimpleNamespace(loss=(x @ self.weight).square().sum())


def test_kept_bytes_leave_out_what_is_there_anyway():
    model = Squares()
    run = Training(model, torch.optim.SGD(model.parameters()))
    assert run.kept_bytes({"x": torch.randn(7, 5)}, seed=0) == 4 * 7 * 3  # the product, to square


def test_the_model_and_the_generator_stay_as_they_were():
    model = tiny("qwen3")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    compare(model, batch())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_both_drop_the_same_elements():
    model = tiny("gpt2", resid_pdrop=0.2, embd_pdrop=0.2).train()
    assert max(compare(model, batch(), swap="gelu").loss_differences) < 1e-5
    assert max(compare(model, batch(), swap="dropout").loss_differences) > 1e-3


def scaled_norm(model):
    norm = model.model.norm
    theirs = norm.forward
    norm.forward = lambda x: 1.01 * theirs(x)


def test_a_wrong_swap_shows_in_the_losses():
    result = compare(tiny("llama"), batch(), swap=scaled_norm)
    assert max(result.loss_differences) > 1e-4
    assert "scaled_norm" in str(result)
    assert result.traffic == {}


def test_a_slow_swap_shows_in_the_times(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def slow(model, seconds=0.1):
        def wait(*_):
            nonlocal now
            now += seconds

        model.register_forward_pre_hook(wait)
        return model

    model = slow(tiny("llama"), seconds=1.0)
    result = compare(model, batch(), swap=slow)
    assert result.ratio == pytest.approx((1 / 1.1,) * 3)
    assert result.steps.swapped[0].seconds == pytest.approx(1.1)
    assert "0.909 [0.909, 0.909], LOSS for the swap" in str(result)
    result = compare(slow(model), batch(), swap=lambda model: model._forward_pre_hooks.popitem())
    assert result.ratio == pytest.approx((1.1,) * 3)
    assert "WIN for the swap" in str(result)


def test_the_two_take_turns_in_going_first_and_see_every_batch():
    seen, batches = [], [batch(tokens=tokens) for tokens in (5, 8, 11)]

    def noting(model):
        model.register_forward_pre_hook(
            lambda module, _, inputs: seen.append((id(module), inputs["input_ids"].shape[1])),
            with_kwargs=True,
        )
        return model

    compare(noting(tiny("llama")), batches, swap="swiglu", steps=5)
    steps = [seen[i : i + 2] for i in range(0, 12, 2)]
    assert [tokens for step in steps for _, tokens in step] == [5, 5, 8, 8, 11, 11] * 2
    assert (
        len({step[0][0] for step in steps[::2]}) == len({step[0][0] for step in steps[1::2]}) == 1
    )
    assert steps[0][0][0] == steps[1][1][0] != steps[0][1][0]


def test_traffic_is_what_the_definition_says(device):
    model = tiny("llama").to(device)
    result = compare(model, batch(device=device), swap="swiglu")
    tensor = 4 * ROWS * TOKENS * INTERMEDIATE
    forward, backward = (
        result.traffic["gated_activation"],
        result.traffic["gated_activation_backward"],
    )
    assert forward.calls == backward.calls == LAYERS
    assert forward.nbytes == LAYERS * 3 * tensor  # gate and up to the product
    assert backward.nbytes == LAYERS * 5 * tensor  # gate, up and gradient to two gradients
    if device == "cuda":
        assert 0 < forward.seconds < result.steps.swapped[-1].seconds
        assert "GB/s" in str(result)
    else:
        assert forward.seconds is None
        assert "GB/s" not in str(result)


def test_peak_memory_is_measured_or_said_not_to_be(device):
    result = compare(tiny("llama").to(device), batch(device=device))
    peaks = {step.peak_bytes for steps in result.steps for step in steps}
    if device == "cuda":
        assert min(peaks) > sum(p.numel() for p in tiny("llama").parameters())
    else:
        assert peaks == {None}
        assert "not measured on CPU" in str(result)


def test_compiled(monkeypatch):
    # Inductor's code is not what this is about, and takes its time to make.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    result = compare(tiny("llama"), batch(), compile=True)
    assert max(result.loss_differences) < 1e-5
    assert result.first.swapped.seconds > 2 * max(s.seconds for s in result.steps.swapped)
    assert "compiled" in str(result)
    assert result.traffic["rms_norm_backward"].calls == 2 * LAYERS + 1


def test_autocast_and_another_optimizer():
    model = tiny("llama")
    sgd = partial(torch.optim.SGD, lr=0.01)
    plain = compare(model, batch(), optimizer=sgd)
    mixed = compare(model, batch(), optimizer=sgd, autocast=torch.bfloat16)
    assert max(plain.loss_differences) < 1e-5 < max(mixed.loss_differences) < 0.02
    assert mixed.steps.without[-1].loss != plain.steps.without[-1].loss
    assert "autocast torch.bfloat16" in str(mixed)


def test_what_is_printed_is_what_is_returned(capsys):
    result = compare(tiny("llama"), batch(), swap="rms_norm")
    printed = capsys.readouterr().out
    assert printed == f"{result}\n"
    assert "rms_norm           5 replaced" in printed
    assert f"{max(result.loss_differences):.2e}" in printed
    assert f"{1e3 * spread([s.seconds for s in result.steps.swapped]).middle:.3f}" in printed


def test_wrong_calls():
    model = tiny("llama")
    with pytest.raises(ValueError, match="at least one step"):
        ninefold.ab(model, batch(), steps=0)
    with pytest.raises(ValueError, match="no loss: the batch needs labels"):
        ninefold.ab(model, {"input_ids": batch()["input_ids"]})
    with pytest.raises(ValueError, match="llama has no gelu to swap"):
        ninefold.ab(model, batch(), swap="gelu")
    with pytest.raises(TypeError, match="expected a model of transformers"):
        ninefold.ab(nn.Linear(1, 1), batch())


def test_the_interval_holds_the_median_as_often_as_it_says():
    assert spread(range(1, 21)) == (6, 10.5, 15)
    assert spread([3.0]) == (3, 3, 3)
    assert spread([5, 1, 3]) == (1, 3, 5)
    draw = random.Random(1)
    for n in (6, 15, 40):
        spreads = [spread([draw.lognormvariate(0, 1) for _ in range(n)]) for _ in range(4000)]
        held = sum(s.low <= 1 <= s.high for s in spreads) / len(spreads)
        assert held >= 0.94
    assert f"{Spread(1, 2, 3):.1f}" == "2.0 [1.0, 3.0]"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.03, 1.2, "WIN"), (0.8, 0.97, "LOSS"), (0.99, 1.01, "TIE"), (0.99, 1.3, "UNCLEAR")],
)
def test_the_verdict_is_that_of_the_whole_interval(low, high, expected):
    assert verdict(Spread(low, (low + high) / 2, high)) == expected
