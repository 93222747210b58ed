"""The swaps of GPT-2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ops import Dropout, LayerNorm, gelu
from .loss import loss_swaps
from .override import LossSwap, Swap, instead
from .recognise import check_names, check_results

NOTES = {
    None: "attention and its dropout stay torch's: Ninefold has no such operator",
    "dropout": "dropout draws other masks than torch's from the same seed",
}


def block(
    self,
    hidden_states: Tensor,
    cache=None,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    use_cache: bool | None = False,
    **kwargs,
) -> Tensor:
    """The first of the block's two additions is left to the norm that follows it."""
    if encoder_hidden_states is not None:
        raise ValueError("encoder_hidden_states: this block has no cross-attention")
    attended, _ = self.attn(
        self.ln_1(hidden_states),
        cache,
        attention_mask=attention_mask,
        use_cache=use_cache,
        **kwargs,
    )
    normed, hidden_states = self.ln_2(attended, hidden_states)
    return hidden_states + self.mlp(normed)


def gelu_new(self, input: Tensor) -> Tensor:
    return gelu(input, "tanh")


def swaps(model_type: str) -> list[Swap | LossSwap]:
    """In the order in which they take their modules."""
    from transformers.activations import GELUTanh, NewGELUActivation
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block, GPT2LMHeadModel

    def check_block() -> None:
        names = "ln_1", "attn", "hasattr", "ValueError", "ln_cross_attn", "crossattention", "ln_2"
        check_names(GPT2Block.forward, *names, "mlp")

    def check_gelu() -> None:
        x = torch.linspace(-5, 5, 64, dtype=torch.float32, device="cpu")
        check_results(NewGELUActivation.forward, gelu_new, None, x)

    def has_cross_attention(_: str, module: nn.Module) -> str | None:
        return "it has cross-attention" if hasattr(module, "crossattention") else None

    def drops_nothing(name: str, module: nn.Module) -> str | None:
        if name.endswith("attn_dropout"):
            return "attention reads its p, and drops by itself"
        return "its p is 0" if module.p == 0.0 else None

    norms = Swap("layer_norm", (nn.LayerNorm,), instead(LayerNorm.forward))
    return [
        Swap(
            "add_layer_norm",
            (GPT2Block,),
            instead(block),
            children={"ln_2": norms},
            check=check_block,
            refusal=has_cross_attention,
        ),
        norms,
        Swap("gelu", (NewGELUActivation, GELUTanh), instead(gelu_new), check=check_gelu),
        Swap("dropout", (nn.Dropout,), instead(Dropout.forward), refusal=drops_nothing),
        *loss_swaps(GPT2LMHeadModel),
    ]
