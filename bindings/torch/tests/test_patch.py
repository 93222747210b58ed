"""ninefold.patch: the same numbers from other kernels, and nothing left behind."""

import copy

import pytest
import torch
from tiny_models import CONFIGS, LAYERS, batch, calls, error, loss_and_gradients, tiny

import ninefold

every_model = pytest.mark.parametrize("model_type", CONFIGS)
every_attention = pytest.mark.parametrize("attention", ["sdpa", "eager"])

# By swap: the operators that run once for each of these modules in one training step.
L = LAYERS
CALLS = {
    "llama": {
        "add_rms_norm": {"add_rms_norm": L, "rms_norm_backward": L},
        "rms_norm": {"rms_norm": 2 * L + 1, "rms_norm_backward": 2 * L + 1},
        "swiglu": {"gated_activation": L, "gated_activation_backward": L},
        "apply_rotary": {"rope": L, "rope_backward": L},
        "cross_entropy": {"cross_entropy": 1, "cross_entropy_backward": 1},
        "cross_entropy_": {"cross_entropy": 1, "cross_entropy_backward_": 1},
    },
    "gpt2": {
        "add_layer_norm": {"add_layer_norm": L, "layer_norm_backward": L},
        "layer_norm": {"layer_norm": 2 * L + 1, "layer_norm_backward": 2 * L + 1},
        "gelu": {"activation": L, "activation_backward": L},
        "dropout": {"dropout": 2 * L, "dropout_backward": 2 * L},
        "cross_entropy": {"cross_entropy": 1, "cross_entropy_backward": 1},
        "cross_entropy_": {"cross_entropy": 1, "cross_entropy_backward_": 1},
    },
}
CALLS["qwen3"] = CALLS["llama"] | {
    "rms_norm": {"rms_norm": 4 * L + 1, "rms_norm_backward": 4 * L + 1}
}
# What torch runs in their place, and no other part of these models.
REPLACED = {"silu", "rsqrt", "neg", "tanh", "native_layer_norm", "_log_softmax", "nll_loss_forward"}


@every_model
@every_attention
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_losses_and_gradients_are_as_good(model_type, attention, dtype, device):
    model = tiny(model_type, attention=attention).to(device, dtype)
    inputs = batch(device=device)
    exact_loss, exact = loss_and_gradients(copy.deepcopy(model).double(), inputs)
    theirs_loss, theirs = loss_and_gradients(model, inputs)
    with ninefold.patch(model):
        ours_loss, ours = loss_and_gradients(model, inputs)
    assert ours_loss.dtype == theirs_loss.dtype
    assert abs(ours_loss - exact_loss) <= 4 * torch.finfo(dtype).eps * exact_loss
    # transformers has norms, rotation and loss in fp32 whatever the model is in: the reference is
    # no better than that.
    assert error(ours, exact) <= 1.25 * error(theirs, exact) + 2e-6


@pytest.mark.parametrize(
    ("model_type", "op"), [(model, op) for model, ops in CALLS.items() for op in ops]
)
def test_one_swap_calls_its_operators_and_no_others(model_type, op):
    model = tiny(model_type, resid_pdrop=0.1)
    assert calls(model, batch()).ours == {}
    with ninefold.patch(model, ops=op):
        assert calls(model, batch()).ours == CALLS[model_type][op]
    assert calls(model, batch()).ours == {}


@every_model
def test_all_swaps_leave_nothing_to_torch(model_type):
    model = tiny(model_type)
    assert calls(model, batch()).aten & REPLACED
    with ninefold.patch(model):
        assert not calls(model, batch()).aten & REPLACED


@every_model
def test_ten_steps_of_training_stay_together(model_type):
    def train(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(10):
            loss = model(**batch()).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    theirs, patched = tiny(model_type), tiny(model_type)
    ninefold.patch(patched)
    expected = train(theirs)
    assert expected[-1] < 0.7 * expected[0]
    assert train(patched) == pytest.approx(expected, rel=1e-4)


@every_model
def test_undo_restores_every_object_and_bit(model_type):
    model, untouched = tiny(model_type), tiny(model_type, seed=2)
    classes = {type(m): type(m).forward for m in model.modules()}
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    parameters = dict(model.named_parameters())
    state = model.state_dict()
    before = loss_and_gradients(model, batch())

    patch = ninefold.patch(model)
    assert all(a is b for a, b in zip(parameters.values(), model.parameters(), strict=True))
    assert list(model.state_dict()) == list(state)
    assert all(cls.forward is forward for cls, forward in classes.items())
    assert not any("forward" in vars(module) for module in untouched.modules())
    assert calls(untouched, batch()).ours == {}

    patch.undo()
    patch.undo()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    after = loss_and_gradients(model, batch())
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(before[1][name], after[1][name]) for name in parameters)


def test_the_end_of_a_with_undoes_also_after_an_error():
    model = tiny("llama")
    with pytest.raises(ZeroDivisionError), ninefold.patch(model):
        raise ZeroDivisionError
    assert calls(model, batch()).ours == {}


def test_undo_stops_where_something_came_on_top():
    model = tiny("llama")
    patch = ninefold.patch(model)
    ours = model.model.norm.forward
    model.model.norm.forward = lambda x: ours(x)
    with pytest.raises(RuntimeError, match="forward of a LlamaRMSNorm was replaced again"):
        patch.undo()
    assert calls(model, batch()).ours == calls_of_all("llama")  # nothing was undone
    model.model.norm.forward = ours
    patch.undo()
    assert calls(model, batch()).ours == {}


def calls_of_all(model_type: str) -> dict[str, int]:
    return {
        "add_rms_norm": L,
        "rms_norm": L + 1,
        "rms_norm_backward": 2 * L + 1,
        **CALLS[model_type]["swiglu"],
        **CALLS[model_type]["apply_rotary"],
        **CALLS[model_type]["cross_entropy"],
    }


def test_swaps_can_be_made_one_after_the_other():
    model = tiny("llama")
    first = ninefold.patch(model, ops={"swiglu", "rms_norm"})
    second = ninefold.patch(model)
    assert second.replaced["swiglu"] == second.replaced["rms_norm"] == []
    assert second.kept["swiglu"]["model.layers.0.mlp"] == (
        "forward of its LlamaMLP was replaced before"
    )
    first.undo()
    second.undo()
    assert calls(model, batch()).ours == {}


def test_a_copy_of_a_patched_model_runs_on_its_own_parameters():
    model = tiny("qwen3")
    ninefold.patch(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found, expected = (loss_and_gradients(m, batch())[0].item() for m in (twin, tiny("qwen3")))
    assert found == pytest.approx(expected, rel=1e-5)
