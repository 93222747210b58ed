"""What ninefold.patch does not swap: it says so, and changes nothing."""

import pytest
import torch
from tiny_models import LAYERS, batch, calls, tiny, transformers
from torch import nn
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama

import ninefold

VERSION = transformers.__version__


def changed_norm(self, hidden_states):  # Gemma's
    variance = hidden_states.float().square().mean(-1, keepdim=True)
    normed = hidden_states.float() * torch.rsqrt(variance + self.variance_epsilon)
    return ((1 + self.weight.float()) * normed).to(hidden_states.dtype)


def changed_mlp(self, x):
    return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


def changed_layer(self, hidden_states, **kwargs):  # norms after, not before
    attended, _ = self.self_attn(hidden_states=hidden_states, **kwargs)
    hidden_states = hidden_states + self.input_layernorm(attended)
    return hidden_states + self.post_attention_layernorm(self.mlp(hidden_states))


def changed_attention(self, hidden_states, position_embeddings, attention_mask, **kwargs):
    return hidden_states, None


def changed_rotation(q, k, cos, sin, unsqueeze_dim=1):  # pairs of neighbours, as GPT-J has them
    def turn(x):
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((-odd, even), -1).flatten(-2)

    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + turn(q) * sin, k * cos + turn(k) * sin


def changed_loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100,
                 shift_labels=None, **kwargs):  # fmt: skip
    """Forgets num_items_in_batch."""
    shift_labels = labels[:, 1:] if shift_labels is None else shift_labels
    logits = logits[:, : shift_labels.shape[1]].reshape(-1, vocab_size)
    return nn.functional.cross_entropy(logits, shift_labels.reshape(-1), ignore_index=ignore_index)


def loss_with_another_signature(logits, labels, vocab_size, **kwargs):
    return changed_loss(logits, labels, vocab_size)


llama = modeling_llama
CHANGES = [
    ("rms_norm", llama.LlamaRMSNorm, changed_norm, "computes something else"),
    ("add_rms_norm", llama.LlamaRMSNorm, changed_norm, "computes something else"),
    ("add_rms_norm", llama.LlamaDecoderLayer, changed_layer, "uses self_attn, input_layernorm"),
    ("swiglu", llama.LlamaMLP, changed_mlp, "computes something else"),
    ("apply_rotary", llama.LlamaAttention, changed_attention, "does not use apply_rotary_pos_emb"),
]


@pytest.mark.parametrize(("op", "changed", "forward", "what"), CHANGES)
def test_another_code_is_another_version(monkeypatch, op, changed, forward, what):
    model = tiny("llama")
    monkeypatch.setattr(changed, "forward", forward)
    with pytest.raises(NotImplementedError) as refusal:
        ninefold.patch(model, ops=op)
    assert f"does not know transformers {VERSION}: " in str(refusal.value)
    assert f"{forward.__name__} {what}" in str(refusal.value)
    assert not any("forward" in vars(module) for module in model.modules())


def test_another_rotation_is_another_version(monkeypatch):
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", changed_rotation)
    with pytest.raises(NotImplementedError, match="changed_rotation computes something else"):
        ninefold.patch(tiny("llama"))


@pytest.mark.parametrize(
    ("loss", "what"),
    [(changed_loss, "computes something else"), (loss_with_another_signature, r"takes \(logits,")],
)
def test_another_loss_is_another_version(monkeypatch, loss, what):
    monkeypatch.setattr("transformers.loss.loss_utils.ForCausalLMLoss", loss)
    with pytest.raises(NotImplementedError, match=f"{loss.__name__} {what}"):
        ninefold.patch(tiny("gpt2"))


def test_a_decorator_that_hides_what_it_wraps_is_another_version(monkeypatch):
    class Wrapper:
        __wrapped__ = modeling_gpt2.GPT2Block.forward

        def __call__(self, *args, **kwargs):
            return self.__wrapped__(*args, **kwargs)

    model = tiny("gpt2")
    monkeypatch.setattr(modeling_gpt2.GPT2Block, "forward", Wrapper())
    with pytest.raises(NotImplementedError, match="GPT2Block.forward has a decorator that cannot"):
        ninefold.patch(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_unknown_models_and_names():
    with pytest.raises(TypeError, match="expected a model of transformers, got Linear"):
        ninefold.patch(nn.Linear(2, 2))
    config = transformers.MistralConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, vocab_size=8,
    )  # fmt: skip
    with pytest.raises(NotImplementedError, match="knows gpt2, llama, qwen3, not mistral"):
        ninefold.patch(transformers.MistralForCausalLM(config))
    with pytest.raises(ValueError, match="llama has no gelu, layer_norm to swap; it has add_rms"):
        ninefold.patch(tiny("llama"), ops={"rms_norm", "layer_norm", "gelu"})


class OwnNorm(modeling_llama.LlamaRMSNorm):
    def forward(self, hidden_states):
        return 2 * super().forward(hidden_states)


def test_single_modules_are_kept_with_a_reason():
    model = tiny("llama")
    layers, theirs = model.model.layers, model.model.norm.forward
    model.model.norm.forward = lambda x: theirs(x)
    layers[0].post_attention_layernorm = OwnNorm(32)
    layers[1].mlp.act_fn = nn.ReLU()
    model.loss_function = changed_loss
    before = model(**batch()).loss

    patch = ninefold.patch(model)
    own = "OwnNorm has a forward of its own"
    assert patch.kept == {
        "add_rms_norm": {"model.layers.0": own},
        "rms_norm": {
            "model.layers.0.post_attention_layernorm": own,
            "model.norm": "forward of its LlamaRMSNorm was replaced before",
        },
        "swiglu": {"model.layers.1.mlp": "its activation is ReLU"},
        "apply_rotary": {},
        "cross_entropy": {"": "its loss is changed_loss"},
    }
    assert len(patch.replaced["rms_norm"]) == 2
    torch.testing.assert_close(model(**batch()).loss, before, rtol=1e-5, atol=0)
    patch.undo()
    assert torch.equal(model(**batch()).loss, before)


def test_a_float64_model_is_kept_as_a_whole():
    model = tiny("qwen3").double()
    patch = ninefold.patch(model)
    assert not any(patch.replaced.values())
    assert {r for kept in patch.kept.values() for r in kept.values()} == {
        "it has float64 parameters"
    }
    assert calls(model, batch()).ours == {}


def test_layers_with_cross_attention_are_kept():
    model = tiny("gpt2", add_cross_attention=True)
    with ninefold.patch(model) as patch:
        assert patch.kept["add_layer_norm"] == {
            f"transformer.h.{layer}": "it has cross-attention" for layer in range(LAYERS)
        }
        assert calls(model, batch()).ours["layer_norm"] == 2 * LAYERS + 1


def test_a_block_refuses_the_encoder_that_it_cannot_attend_to():
    model = tiny("gpt2")
    ninefold.patch(model)
    hidden = torch.zeros(1, 3, 32)
    with pytest.raises(ValueError, match="has no cross-attention"):  # as the unpatched one does
        model.transformer.h[0](hidden, encoder_hidden_states=hidden)


def test_the_report_reads_well():
    assert (
        str(ninefold.patch(tiny("qwen3")))
        == f"""\
ninefold.patch: Qwen3ForCausalLM, transformers {VERSION}
  add_rms_norm       2 replaced  model.layers.* (2)
  rms_norm           7 replaced  model.layers.*.self_attn.q_norm (2), \
model.layers.*.self_attn.k_norm (2), model.layers.*.input_layernorm (2), model.norm
  swiglu             2 replaced  model.layers.*.mlp (2)
  apply_rotary       2 replaced  model.layers.*.self_attn (2)
  cross_entropy      1 replaced  the model
  attention and its dropout stay torch's: Ninefold has no such operator"""
    )
    model = tiny("gpt2", resid_pdrop=0.1)
    model.transformer.h[0].mlp.act = nn.ReLU()
    assert (
        str(ninefold.patch(model, ops={"gelu", "dropout"}))
        == f"""\
ninefold.patch: GPT2LMHeadModel, transformers {VERSION}
  gelu               1 replaced  transformer.h.*.mlp.act
  dropout            4 replaced  transformer.h.*.attn.resid_dropout (2), \
transformer.h.*.mlp.dropout (2)
  dropout            1 kept      transformer.drop: its p is 0
  dropout            2 kept      transformer.h.*.attn.attn_dropout (2): attention reads its p, \
and drops by itself
  attention and its dropout stay torch's: Ninefold has no such operator
  dropout draws other masks than torch's from the same seed"""
    )
