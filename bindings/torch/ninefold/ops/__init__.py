"""The operators of `torch.ops.ninefold`, and the functions and modules on top of them."""

from .activation import GELU, SiLU, bias_gelu, gelu, relu2, silu
from .adamw import AdamW
from .cross_entropy import CrossEntropyLoss, cross_entropy
from .dropout import Dropout, dropout, dropout_add
from .gated_activation import SwiGLU, geglu, reglu, swiglu, swiglu_clamped
from .norm import LayerNorm, RMSNorm, layer_norm, rms_norm
from .rope import apply_rotary, apply_rotary_, apply_rotary_pos_emb
from .softmax import LogSoftmax, Softmax, log_softmax, softmax
from .vector_add import vector_add

__all__ = [
    "AdamW",
    "CrossEntropyLoss",
    "Dropout",
    "GELU",
    "LayerNorm",
    "LogSoftmax",
    "RMSNorm",
    "SiLU",
    "Softmax",
    "SwiGLU",
    "apply_rotary",
    "apply_rotary_",
    "apply_rotary_pos_emb",
    "bias_gelu",
    "cross_entropy",
    "dropout",
    "dropout_add",
    "geglu",
    "gelu",
    "layer_norm",
    "log_softmax",
    "reglu",
    "relu2",
    "rms_norm",
    "silu",
    "softmax",
    "swiglu",
    "swiglu_clamped",
    "vector_add",
]
