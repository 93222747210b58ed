"""Patched models in what else models are put through: torch.compile, gradient checkpointing,
autocast, generation, hooks, FSDP."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from tiny_models import CONFIGS, LAYERS, Calls, batch, calls, error, loss_and_gradients, tiny
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import ninefold
from ninefold.swap.loss import causal_lm_loss

every_model = pytest.mark.parametrize("model_type", CONFIGS)
every_attention = pytest.mark.parametrize("attention", ["sdpa", "eager"])


@every_model
def test_compile_sees_one_graph_for_all_lengths(model_type):
    model = tiny(model_type)
    expected = {tokens: loss_and_gradients(model, batch(tokens=tokens)) for tokens in (13, 9, 24)}
    ninefold.patch(model)
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens, (loss, gradients) in expected.items():
        model.zero_grad()
        found = compiled(**batch(tokens=tokens)).loss
        found.backward()
        assert found.item() == pytest.approx(loss.item(), rel=1e-5)
        found_gradients = {name: p.grad for name, p in model.named_parameters()}
        assert error(found_gradients, gradients) < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@every_model
def test_no_graph_break_is_added(model_type):
    model = tiny(model_type)
    before = torch._dynamo.explain(model)(**batch())
    ninefold.patch(model)
    after = torch._dynamo.explain(model)(**batch())
    assert after.graph_break_count <= before.graph_break_count
    assert "ninefold" in "".join(graph.print_readable(False) for graph in after.graphs)


def test_a_loss_over_its_own_logits_compiles():
    for options in {"inplace_backward": True}, {"inplace_backward": True, "loss_scale": 1.0}:
        model = tiny("llama")
        expected = loss_and_gradients(model, batch())[1]
        model.loss_function = partial(causal_lm_loss, **options)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        model.zero_grad()
        compiled(**batch()).loss.backward()
        assert error({name: p.grad for name, p in model.named_parameters()}, expected) < 1e-5


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "swiglu", "apply_rotary"])
def test_compiled_code_notices_a_patch_and_its_end(op):
    model, ran = tiny("llama"), []

    def backend(graph, _):
        kind = "ninefold" in str(graph.code)
        return lambda *args: (ran.append(kind), graph(*args))[1]

    compiled = torch.compile(model, backend=backend)
    compiled(**batch())
    with ninefold.patch(compiled, ops=op):
        compiled(**batch())
    compiled(**batch())
    assert ran == [False, True, False]


@every_model
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_recomputes_with_the_same_kernels(model_type, reentrant):
    model = tiny(model_type).train()
    expected = loss_and_gradients(model, batch())
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with ninefold.patch(model):
        loss, gradients = loss_and_gradients(model, batch())
        ours = calls(model, batch()).ours
    assert loss.item() == pytest.approx(expected[0].item(), rel=1e-6)
    assert error(gradients, expected[1]) < 1e-5
    norm = "add_layer_norm" if model_type == "gpt2" else "add_rms_norm"
    assert ours[norm] == 2 * LAYERS


@every_model
@every_attention
def test_autocast(model_type, attention, device):
    model = tiny(model_type, attention=attention).to(device)
    exact = loss_and_gradients(model, batch(device=device))[1]

    def gradients():
        with torch.autocast(device, torch.bfloat16):
            return loss_and_gradients(model, batch(device=device))[1]

    theirs = gradients()
    with ninefold.patch(model):
        assert error(gradients(), exact) <= 1.25 * error(theirs, exact)


@every_model
@every_attention
def test_generation_gives_the_same_tokens(model_type, attention):
    model = tiny(model_type, attention=attention).eval()
    ids = batch(rows=3, tokens=7)["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, :3] = 0  # filled up on the left, so that each row has its own positions
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    with ninefold.patch(model), Calls() as made:
        found = model.generate(ids, **options)
    assert torch.equal(found, expected)
    assert len(expected[:, 7:].unique()) > 3
    assert min(made.ours.values()) >= 12


@every_model
def test_hidden_states_and_attentions_are_captured_as_before(model_type):
    model = tiny(model_type, attention="eager")
    inputs = batch() | {"output_hidden_states": True, "output_attentions": True}
    expected = model(**inputs)
    with ninefold.patch(model):
        found = model(**inputs)
    for name in ("hidden_states", "attentions"):
        assert len(found[name]) == len(expected[name]) > 0
        for a, b in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_follows_the_seed_and_stops_in_evaluation():
    model = tiny("gpt2", resid_pdrop=0.3, embd_pdrop=0.3)

    def logits(seed):
        torch.manual_seed(seed)
        return model(**batch()).logits

    model.eval()
    expected = logits(0)
    with ninefold.patch(model):
        torch.testing.assert_close(logits(0), expected, rtol=1e-4, atol=1e-4)
        model.train()
        assert torch.equal(logits(1), logits(1))
        assert not torch.equal(logits(1), logits(2))
        dropped = model.transformer.drop(torch.ones(100_000))
    assert dropped.eq(0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    share = 1 - round(0.3 * 2**16) / 2**16  # as it is drawn
    assert dropped.unique().tolist() == pytest.approx([0, 1 / share])


def test_the_loss_is_divided_by_what_the_trainer_counted():
    model = tiny("llama")
    first, second = ({name: t[row : row + 1] for name, t in batch().items()} for row in (0, 1))
    count = batch()["labels"][:, 1:].ne(-100).sum()
    whole = model(**batch()).loss
    with ninefold.patch(model):
        for items in (count, count.item()):
            parts = [model(**part, num_items_in_batch=items).loss for part in (first, second)]
            torch.testing.assert_close(sum(parts), whole)


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("patched", ["before", "after"])
def test_fsdp_shards_a_patched_model(mesh, patched):
    model = tiny("qwen3").train()
    expected = loss_and_gradients(copy.deepcopy(model), batch())
    model.gradient_checkpointing_enable()
    if patched == "before":
        ninefold.patch(model)
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    assert isinstance(model.model.layers[0], FSDPModule)
    if patched == "after":
        ninefold.patch(model)
    with Calls() as made:
        loss, gradients = loss_and_gradients(model, batch())
    assert loss.item() == pytest.approx(expected[0].item(), rel=1e-6)
    whole = {name: gradient.full_tensor() for name, gradient in gradients.items()}
    assert error(whole, expected[1]) < 1e-5
    if patched == "after":  # as patch's docstring asks for it: the layers are checkpointed still
        assert made.ours["add_rms_norm"] == 2 * LAYERS
