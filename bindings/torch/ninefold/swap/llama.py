"""The swaps of Llama and Qwen3. The modules of both are written alike; Qwen3 norms queries and keys
too."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from ..ops import apply_rotary_pos_emb, rms_norm, swiglu
from .loss import loss_swaps
from .override import LossSwap, Swap, instead, with_globals
from .recognise import check_names, check_results, check_uses

NOTES = {None: "attention and its dropout stay torch's: Ninefold has no such operator"}


def norm(self, hidden_states: Tensor, residual: Tensor | None = None):
    """RMSNorm's forward; with a residual that of the sum, and the sum."""
    shape, eps = self.weight.shape, self.variance_epsilon
    if residual is None:
        return rms_norm(hidden_states, shape, self.weight, eps, rounding="llama")
    # Where autocast made them unlike, the sum is in the residual's fp32, not rounded on the way.
    rounding = "llama" if hidden_states.dtype == residual.dtype else "once"
    return rms_norm(hidden_states, shape, self.weight, eps, residual=residual, rounding=rounding)


def mlp(self, x: Tensor) -> Tensor:
    return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


def layer(self, hidden_states: Tensor, **kwargs) -> Tensor:
    """The first of the layer's two additions is left to the norm that follows it."""
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    normed, hidden_states = self.post_attention_layernorm(attended, hidden_states)
    return hidden_states + self.mlp(normed)


def rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb whose results lie in memory as the projections made q and k, tokens
    before heads. Attention gives its own result that layout, and nothing has to be copied."""
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    q, k = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=3 - unsqueeze_dim)
    return q.transpose(1, 2), k.transpose(1, 2)


def swaps(model_type: str) -> list[Swap | LossSwap]:
    """In the order in which they take their modules."""
    name = {"llama": "Llama", "qwen3": "Qwen3"}[model_type]
    theirs = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    norm_class = getattr(theirs, f"{name}RMSNorm")
    mlp_class = getattr(theirs, f"{name}MLP")
    attention_class = getattr(theirs, f"{name}Attention")
    layer_class = getattr(theirs, f"{name}DecoderLayer")

    def check_norm() -> None:
        probe = SimpleNamespace(weight=_wave(6) + 2, variance_epsilon=0.1)
        check_results(norm_class.forward, norm, probe, _wave(3, 6))

    def check_layer() -> None:
        check_norm()
        names = "input_layernorm", "self_attn", "post_attention_layernorm", "mlp"
        check_names(layer_class.forward, *names)

    def check_mlp() -> None:
        probe = SimpleNamespace(
            gate_proj=lambda x: 3 * x,
            up_proj=lambda x: x + 1,
            down_proj=lambda x: 2 * x,
            act_fn=nn.functional.silu,
        )
        check_results(mlp_class.forward, mlp, probe, _wave(3, 6))

    def check_rotation() -> None:
        check_uses(attention_class.forward, "apply_rotary_pos_emb")
        cos, sin = _wave(1, 3, 4).repeat(1, 1, 2), _wave(1, 3, 4).square().repeat(1, 1, 2)
        q, k = _wave(2, 4, 3, 8), _wave(2, 1, 3, 8)
        check_results(theirs.apply_rotary_pos_emb, rotate, q, k, cos, sin)

    def not_silu(_: str, module: nn.Module) -> str | None:
        activation = type(module.act_fn).__name__
        return (
            None if activation in ("SiLUActivation", "SiLU") else f"its activation is {activation}"
        )

    norms = Swap("rms_norm", (norm_class,), instead(norm), check=check_norm)
    return [
        Swap(
            "add_rms_norm",
            (layer_class,),
            instead(layer),
            children={"post_attention_layernorm": norms},
            check=check_layer,
        ),
        norms,
        Swap("swiglu", (mlp_class,), instead(mlp), check=check_mlp, refusal=not_silu),
        Swap(
            "apply_rotary",
            (attention_class,),
            with_globals(apply_rotary_pos_emb=rotate),
            check=check_rotation,
        ),
        *loss_swaps(getattr(theirs, f"{name}ForCausalLM")),
    ]


def _wave(*shape: int) -> Tensor:
    count = torch.Size(shape).numel()
    return 2 * torch.arange(count, dtype=torch.float32, device="cpu").sin().view(shape)
