"""AdamW, one launch for all parameters, with loss scaling and clipping in the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .op import Op


def _fake(
    params,
    grads,
    exp_avgs,
    exp_avg_sqs,
    masters,
    step,
    lrs,
    weight_decays,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    lr=None,
    inv_scale=None,
    found_inf=None,
    max_norm=0.0,
    seed=None,
):
    shape = () if max_norm else (0,)
    return torch.empty(shape, dtype=torch.float32, device=step.device)


_step = Op("adamw_", fake=_fake)


@dataclass
class _Call:
    """The parameters of one launch: on one device, at one step, of one betas and eps."""

    step: Tensor
    lr: Tensor | None  # on the device; or in lrs
    betas: tuple[float, float]
    eps: float
    seed: int | None
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    exp_avgs: list[Tensor] = field(default_factory=list)
    exp_avg_sqs: list[Tensor] = field(default_factory=list)
    masters: list[Tensor] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)
    weight_decays: list[float] = field(default_factory=list)

    def run(self, inv_scale: Tensor | None, found_inf: Tensor | None, max_norm: float) -> Tensor:
        return _step(
            self.params,
            self.grads,
            self.exp_avgs,
            self.exp_avg_sqs,
            self.masters,
            self.step,
            self.lrs,
            self.weight_decays,
            *self.betas,
            self.eps,
            self.lr,
            inv_scale,
            found_inf,
            max_norm,
            self.seed,
        )


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`: the same update to fp32 rounding, the same state_dict, one launch.

    Args:
        params, lr, betas, eps, weight_decay: as in torch. Parameters and gradients are contiguous;
            fp32, or what `master_weights` and `stochastic_rounding` allow. A tensor `lr` is read on
            its device. Learning rates and decays of the groups may differ within the one launch;
            betas and eps of their own, another device, or another number of steps taken cost one
            more.
        foreach, capturable, fused: accepted, and without effect: a step is always fused, never
            waits for the device and can be captured in a CUDA graph.
        amsgrad, maximize, differentiable: not supported.
        master_weights: fp16 and bf16 parameters get an fp32 copy, `state[p]["master"]`, which is
            updated, and rounded to the parameter.
        stochastic_rounding: bf16 parameters without such a copy are rounded up or down at random,
            right on average. The seed is drawn from torch's generator here, and saved with the
            groups.
        max_norm: clips the gradients of all groups together to this norm, as
            `torch.nn.utils.clip_grad_norm_` would before the step; math.inf only measures it. After
            `step`, `grad_norm` is the norm before clipping, an fp32 scalar on the device. A step
            whose norm is not finite is skipped.

    `exp_avg`, `exp_avg_sq` and `master` are fp32 whatever the parameter's dtype. While it runs,
    `state[p]["step"]` is an int64 scalar on the device that parameters share. `state_dict` has it
    as torch does, an fp32 scalar on the CPU for each parameter, for which it waits for the device.

    With `torch.amp.GradScaler` it unscales and skips in the same launch, as torch's fused AdamW
    does; a skipped step is not counted. The gradients themselves are never written.

    Raises:
        NotImplementedError: an unsupported argument, also from a state_dict that is loaded; a
            tensor for betas; eps 0; in `step`, a dtype or strides that are not supported, a 16-bit
            parameter with neither master copy nor stochastic rounding.
        ValueError: a number out of its range.
    """

    _step_supports_amp_scaling = True  # see GradScaler.step
    grad_norm: Tensor | None = None

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        master_weights: bool = False,
        stochastic_rounding: bool = False,
        max_norm: float | None = None,
    ):
        if max_norm is not None and not max_norm > 0.0:
            raise ValueError(f"Invalid max_norm: {max_norm}")
        self.max_norm = max_norm
        self._more_defaults = {
            "master_weights": master_weights,
            "rounding_seed": torch.randint(2**62, ()).item() if stochastic_rounding else None,
        }
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        # torch makes its own defaults, then adds the first group.
        self.defaults.update(vars(self).pop("_more_defaults", {}))
        super().add_param_group(param_group)
        _check(param_group)

    @torch._disable_dynamo  # under torch.compile it runs as it is
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all parameters that have a gradient; returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        calls = self._calls()
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        inv_scale = None if scale is None else scale.reciprocal()
        max_norm = self.max_norm or 0.0
        self.grad_norm = None
        if max_norm and len(calls) > 1:
            inv_scale, found_inf = self._clip(calls, inv_scale, found_inf)
            max_norm = 0.0
        for call in calls:
            on_device = {"device": call.step.device, "non_blocking": True}
            norm = call.run(
                None if inv_scale is None else inv_scale.to(**on_device),
                None if found_inf is None else found_inf.to(**on_device),
                max_norm,
            )
            if max_norm:
                self.grad_norm = norm
        return loss

    def _calls(self) -> list[_Call]:
        calls: dict[tuple, _Call] = {}
        begun: dict[torch.device, Tensor] = {}  # the counts of those that take their first step
        idle = set()
        for group in self.param_groups:
            lr, betas, eps = group["lr"], group["betas"], group["eps"]
            seed, masters = group["rounding_seed"], group["master_weights"]
            on_device = isinstance(lr, Tensor) and not lr.is_cpu
            number = 1.0 if on_device else float(lr)
            for p in group["params"]:
                if p.grad is None:
                    if p in self.state:
                        idle.add(id(self.state[p]["step"]))
                    continue
                state = self.state[p]
                if "step" not in state:
                    _begin(state, p, begun)
                step = state["step"]
                key = id(step), *betas, eps, seed, masters, id(lr) if on_device else None
                call = calls.get(key)
                if call is None:
                    rate = lr.to(p.device, torch.float32, non_blocking=True) if on_device else None
                    call = calls[key] = _Call(step, rate, betas, eps, seed)
                call.params.append(p)
                call.grads.append(p.grad)
                call.exp_avgs.append(state["exp_avg"])
                call.exp_avg_sqs.append(state["exp_avg_sq"])
                call.lrs.append(number)
                call.weight_decays.append(group["weight_decay"])
                if masters and p.dtype != torch.float32:
                    if "master" not in state:
                        state["master"] = p.to(torch.float32)
                    call.masters.append(state["master"])
        self._part_counts(calls.values(), idle)
        return list(calls.values())

    def _part_counts(self, calls: Iterable[_Call], idle: set[int]) -> None:
        """Each call counts its step up: what no longer counts together gets a count of its own."""
        taken = idle
        for i, call in enumerate(calls):
            if id(call.step) in taken:
                call.step = call.step.clone()
                for p in call.params:
                    self.state[p]["step"] = call.step
            taken.add(id(call.step))
            if call.seed is not None:
                call.seed += i  # not the same random numbers in two calls

    def _clip(
        self, calls: list[_Call], inv_scale: Tensor | None, found_inf: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What one call does by itself, over several: their inv_scale and found_inf."""
        device = calls[0].step.device
        norms = [n for call in calls for n in torch._foreach_norm(call.grads, 2, torch.float32)]
        norm = torch.linalg.vector_norm(torch.stack([n.to(device) for n in norms]))
        if inv_scale is not None:
            norm = norm * inv_scale.to(device).abs()
        self.grad_norm = norm
        skip = (~norm.isfinite()).to(torch.float32)
        if found_inf is not None:
            skip = skip + found_inf.to(device)
        clip = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
        return clip if inv_scale is None else clip * inv_scale.to(device), skip

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with `step` as it stands there: an fp32 scalar for each parameter."""
        state_dict = super().state_dict()
        counts: dict[int, float] = {}
        for key, state in state_dict["state"].items():
            step = state["step"]
            if id(step) not in counts:
                counts[id(step)] = float(step)
            state_dict["state"][key] = {**state, "step": torch.tensor(counts[id(step)])}
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also takes the state_dict of a `torch.optim.AdamW`; one it refuses changes nothing."""
        loaded: dict[str, Any] = {}

        def look(_, final):  # after all other hooks
            for group in final["param_groups"]:
                _check(group)
            loaded.update(final)

        handle = self.register_load_state_dict_pre_hook(look)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        counts: dict[tuple, Tensor] = {}
        saved = (loaded["state"].get(i) for g in loaded["param_groups"] for i in g["params"])
        params = (p for group in self.param_groups for p in group["params"])
        for p, values in zip(params, saved):
            if values is None:
                continue
            state, count = self.state[p], int(values["step"])
            if (p.device, count) not in counts:
                counts[p.device, count] = torch.tensor(count, device=p.device)
            state["step"] = counts[p.device, count]
            for name in ("exp_avg", "exp_avg_sq", "master"):  # which torch cast to p's dtype
                if name in values:
                    state[name] = values[name].to(p.device, torch.float32)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "max_norm": self.max_norm}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state_dict of torch has none of these
            for name in ("master_weights", "rounding_seed"):
                group.setdefault(name, self.defaults[name])


def _begin(state: dict[str, Tensor], p: Tensor, begun: dict[torch.device, Tensor]) -> None:
    if p.device not in begun:
        begun[p.device] = torch.zeros((), dtype=torch.int64, device=p.device)
    state["step"] = begun[p.device]
    state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
    state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float32)


def _check(group: dict[str, Any]) -> None:
    for name in ("amsgrad", "maximize", "differentiable"):
        if group[name]:
            raise NotImplementedError(f"AdamW: {name} is not supported")
    if any(isinstance(beta, Tensor) for beta in group["betas"]):
        raise NotImplementedError("AdamW: betas: tensors are not supported, only numbers")
    if group["eps"] == 0.0:
        raise NotImplementedError("AdamW: eps: 0 is not supported")
