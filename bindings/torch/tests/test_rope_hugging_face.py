"""Rotary position embedding against that of Hugging Face's models."""

import pytest
import torch

import ninefold
from rope_reference import DTYPES, angles, assert_rounded_once, gradients, queries_and_keys

llama = pytest.importorskip("transformers.models.llama.modeling_llama")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_hugging_face(device, dtype, rows, unsqueeze_dim):
    q, k = queries_and_keys(2, 5, 3, 16, dtype=dtype, device=device)
    if unsqueeze_dim == 1:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    angle = angles(torch.randint(900, (rows, 5), device=device), 16).repeat(1, 1, 2)
    upstreams = tuple(torch.randn_like(t) for t in (q, k))
    tables = angle.cos().to(dtype), angle.sin().to(dtype)  # as the models make them
    exact = gradients(
        lambda q, k: llama.apply_rotary_pos_emb(q, k, *(t.double() for t in tables), unsqueeze_dim),
        q.double(), k.double(), upstreams=upstreams,
    )
    results = gradients(
        lambda q, k: ninefold.apply_rotary_pos_emb(q, k, *tables, unsqueeze_dim),
        q, k, upstreams=upstreams,
    )
    for actual, expected in zip(results, exact):
        assert actual.dtype == dtype
        assert_rounded_once(actual, expected)


@pytest.mark.parametrize(
    "rule",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64,
         "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
         "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.9},
    ],
    ids=lambda rule: f"{rule['rope_type']}-{len(rule)}",
)
def test_scaling_is_hugging_faces(device, rule):
    config = llama.LlamaConfig(
        hidden_size=128, num_attention_heads=4, max_position_embeddings=256,
        rope_parameters={"rope_theta": 500.0, **rule},
    )
    tables = llama.LlamaRotaryEmbedding(config).to(device)
    q, k = queries_and_keys(2, 40, 3, 32, device=device)
    ids = torch.arange(40, device=device)[None]
    expected = llama.apply_rotary_pos_emb(q, k, *tables(q, ids), unsqueeze_dim=2)
    for actual, other in zip(ninefold.apply_rotary(q, k, scaling=config.rope_parameters), expected):
        torch.testing.assert_close(actual, other, rtol=0, atol=4e-5)  # fp32 frequencies times 39
