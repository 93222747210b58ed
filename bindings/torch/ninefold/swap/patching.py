"""Ninefold's kernels in a live Hugging Face model, and out of it again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from importlib import import_module

import torch
from torch import nn

from .override import Kept, LossSwap, Override, Swap

_FAMILIES = {"gpt2": "gpt2", "llama": "llama", "qwen3": "llama"}  # the file, by config.model_type


class Patch:
    """What `patch` did to a model, and the way back. `print` it to read it.

    title     the model's class, and the version of transformers
    replaced  the names of the modules that run each swap now
    kept      the modules that a swap was for and that do not, by name, with the reason
    notes     what else there is to know
    """

    def __init__(self, title: str, ops: Collection[str]):
        self.title = title
        self.replaced: dict[str, list[str]] = {op: [] for op in ops}
        self.kept: dict[str, dict[str, str]] = {op: {} for op in ops}
        self.notes: list[str] = []
        self._overrides: list[Override] = []

    def undo(self) -> None:
        """Gives every object its own function back. A second time it has nothing to do.

        Raises RuntimeError, and undoes nothing, where something else has replaced a function that
        `patch` set: that has to be taken back first.
        """
        for override in self._overrides:
            if not override.is_set():
                raise RuntimeError(
                    f"cannot undo {self.title}: {override.attribute} of a "
                    f"{type(override.owner).__name__} was replaced again since"
                )
        while self._overrides:
            self._overrides.pop().unset()

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = [f"ninefold.patch: {self.title}"]
        for op, names in self.replaced.items():
            if names or not self.kept[op]:
                lines.append(f"  {op:15} {len(names):4} replaced  {_summary(names)}".rstrip())
            reasons = defaultdict(list)
            for name, reason in self.kept[op].items():
                reasons[reason].append(name)
            for reason, kept in reasons.items():
                lines.append(f"  {op:15} {len(kept):4} kept      {_summary(kept)}: {reason}")
        return "\n".join(lines + [f"  {note}" for note in self.notes])

    __repr__ = __str__


def _summary(names: Collection[str]) -> str:
    """Each name once with * for the number of its layer, and how often it stands there."""
    patterns = Counter(re.sub(r"\b\d+\b", "*", name) or "the model" for name in names)
    return ", ".join(name if n == 1 else f"{name} ({n})" for name, n in patterns.items())


def patch(model: nn.Module, *, ops: str | Collection[str] | None = None) -> Patch:
    """Swaps Ninefold's kernels into a live GPT-2, Llama or Qwen3 of Hugging Face's transformers.

    model  of transformers, or a module around one (torch.compile, DDP, FSDP, PEFT). Its modules get
           another `forward` as an attribute of their own, and that is all that changes. Parameters,
           buffers, hooks, the state_dict, and every other model of these classes stay as they are.
           FSDP's fully_shard comes before: it gives the layers a class that checkpoints itself.
    ops    the swaps to make, or one; each that the model has, except those in brackets, where not
           given:
             Llama, Qwen3  add_rms_norm, rms_norm, swiglu, apply_rotary, cross_entropy
             GPT-2         add_layer_norm, layer_norm, gelu, dropout, cross_entropy
             both          [cross_entropy_]
           add_... is the norm after attention together with the addition before it. cross_entropy_
           writes the gradient of the logits over them, except under torch.compile: nobody may read
           them after the backward.

    Returns the report, which is also the way back: `undo()`, or the end of a `with`. The patched
    model computes the same up to rounding, but for dropout, which follows torch.manual_seed to
    other masks than torch's. Under autocast norms and rotation keep the dtype they are given, where
    transformers promotes to fp32 what autocast casts back at the next product.

    Raises TypeError where there is no transformers model, NotImplementedError where its
    architecture, or its code in this version of transformers, is not known here, and ValueError
    where it has no such swap. Nothing has changed then. A single module that cannot be swapped is
    kept, and the report says why.
    """
    from transformers import PreTrainedModel, __version__

    found = next(
        (module for module in model.modules() if isinstance(module, PreTrainedModel)), None
    )
    if found is None:
        raise TypeError(f"expected a model of transformers, got {type(model).__name__}")
    model_type = found.config.model_type
    if model_type not in _FAMILIES:
        raise NotImplementedError(
            f"ninefold.patch knows {', '.join(_FAMILIES)}, not {model_type}: {type(found).__name__}"
        )
    family = import_module(f".{_FAMILIES[model_type]}", __package__)
    swaps = family.swaps(model_type)
    known = dict.fromkeys(swap.op for swap in swaps)
    wanted = [op for op in known if not op.endswith("_")]
    if ops is not None:
        asked = {ops} if isinstance(ops, str) else set(ops)
        if asked - known.keys():
            raise ValueError(
                f"{model_type} has no {', '.join(sorted(asked - known.keys()))} to swap; "
                f"it has {', '.join(known)}"
            )
        wanted = [op for op in known if op in asked]

    swaps = [swap for swap in swaps if swap.op in wanted]
    for swap in swaps:
        swap.check()
    result = Patch(f"{type(found).__name__}, transformers {__version__}", wanted)
    taken: set[nn.Module] = set()
    for swap in swaps:
        for name, module in model.named_modules():
            if isinstance(module, swap.classes) and module not in taken:
                _swap_one(swap, name, module, taken, result)
    for override in result._overrides:
        override.set()
    for op, note in family.NOTES.items():
        if op is None or result.replaced.get(op):
            result.notes.append(note)
    return result


def _swap_one(
    swap: Swap | LossSwap, name: str, module: nn.Module, taken: set[nn.Module], result: Patch
) -> None:
    try:
        if any(parameter.dtype == torch.float64 for parameter in module.parameters()):
            raise Kept("it has float64 parameters")
        overrides = swap.overrides(name, module)
    except Kept as reason:
        result.kept[swap.op][name] = str(reason)
        return
    taken.update(override.owner for override in overrides)
    result.replaced[swap.op].append(name)
    result._overrides += overrides
