"""Small random models of the architectures that ninefold.patch knows, with weights that show
mistakes: none is at its initial value, where a norm's is one and a bias is zero."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

LAYERS, VOCABULARY = 2, 61
_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.2,
}
_GPT2 = {
    "n_embd": 32,
    "n_layer": LAYERS,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": None,
}
CONFIGS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, _LLAMA),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, _LLAMA | {"head_dim": 16}),
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, _GPT2),
}


def tiny(model_type: str, *, attention: str = "sdpa", seed: int = 1, **options):
    model_class, config_class, defaults = CONFIGS[model_type]
    torch.manual_seed(seed)
    model = model_class(config_class(**defaults | options, attn_implementation=attention))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


def batch(rows: int = 2, tokens: int = 13, device: str = "cpu") -> dict[str, torch.Tensor]:
    """input_ids, and labels of which some do not count."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, VOCABULARY, (rows, tokens), generator=generator)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) < 0.2, -100)
    return {"input_ids": ids.to(device), "labels": labels.to(device)}


def loss_and_gradients(model, inputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    used = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), {name: gradient.clone() for name, gradient in used.items()}


def error(found: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> float:
    """Relative L2, over all tensors together."""
    wrong = sum((found[name].double() - exact).square().sum() for name, exact in reference.items())
    return (wrong / sum(exact.square().sum() for exact in reference.values())).sqrt().item()


class Calls(TorchDispatchMode):
    """The operators that run: Ninefold's with their numbers, whether or not they keep something for
    a backward, and the names of aten's."""

    def __init__(self):
        super().__init__()
        self.ours: Counter[str] = Counter()
        self.aten: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        namespace, name = function.name().split(".")[0].split("::")
        if namespace.startswith("ninefold"):
            self.ours[name.removesuffix("_train")] += 1
        else:
            self.aten.add(name)
        return function(*args, **(kwargs or {}))


def calls(model, inputs) -> Calls:
    """Of a training step, without the update."""
    with Calls() as made:
        loss_and_gradients(model, inputs)
    return made
