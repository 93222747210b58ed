"""One step of AdamW over a list of parameters: in fp32, or in bf16 with an fp32 master copy."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import ninefold

from ..c_interface import Call, contender, tried
from ..contender import Contender, Results
from ..core import Case
from ..problem import Problem
from ..rivals import PYTORCH

_LR, _DECAY, _BETAS, _EPS, _MAX_NORM, _STEPS_BEFORE = 1e-3, 0.1, (0.9, 0.999), 1e-8, 1.0, 9
_VOCABULARY, _POSITIONS, _WIDTH = 50257, 1024, 768  # GPT-2 small's


def _gpt2_sizes(layers: int) -> list[int]:
    c = _WIDTH
    block = [c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c]
    return [_VOCABULARY * c, _POSITIONS * c, *(block * layers), c, c]


class AdamWProblem(Problem):
    """The tensors lie one behind the other in a few large ones, which are what is compared.

    What is updated is `p`; with a master, `param` is its copy in 16 bits.
    """

    def __init__(self, case: Case, device: str):
        super().__init__(case, device)
        count, options = case.sizes["P"], case.options
        if "gpt2_layers" in options:
            self.sizes = _gpt2_sizes(options["gpt2_layers"])
        else:
            self.sizes = [count // options["tensors"]] * options["tensors"]
        self.clip, self.master = bool(options.get("clip")), self.dtype != torch.float32
        exact = {name: self.empty(count, dtype=torch.float32) for name in ("p", "m", "v")}
        self.inputs = {**exact, "grad": self.empty(count)}
        self.param = self.empty(count) if self.master else self.inputs["p"]

    def fill(self, seed: int) -> None:
        super().fill(seed)
        self.inputs["v"].square_()

    def expected(self, direction: str) -> dict[str, Tensor]:
        # In place where it goes: there may be 2^30 parameters.
        p, m, v, g = (self.inputs[name].double() for name in ("p", "m", "v", "grad"))
        if self.clip:
            g.mul_((_MAX_NORM / (g.square().sum().sqrt() + 1e-6)).clamp(max=1))
        (beta1, beta2), t = _BETAS, _STEPS_BEFORE + 1
        m.mul_(beta1).add_(g, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        del g
        root = (v / (1 - beta2**t)).sqrt_().add_(_EPS)
        p.mul_(1 - _LR * _DECAY).addcdiv_(m, root, value=-_LR / (1 - beta1**t))
        return {"p": p, "m": m, "v": v, **({"param": p} if self.master else {})}

    def results(self) -> Results:
        exact = {name: self.inputs[name] for name in ("p", "m", "v")}
        return {**exact, **({"param": self.param} if self.master else {})}

    def parts(self, whole: Tensor) -> list[Tensor]:
        return list(whole.split(self.sizes))

    def contenders(self, direction: str) -> list[Contender]:
        return [
            tried(self._ours, ""),
            self._torch("fused", fused=True),
            self._torch("foreach", foreach=True),
            self._torch("compile", foreach=True, capturable=self.device.type == "cuda"),
            tried(self._c_interface),
        ]

    def _ours(self) -> Contender:
        parameters = [torch.nn.Parameter(part) for part in self.parts(self.param)]
        optimizer = ninefold.AdamW(
            parameters,
            _LR,
            _BETAS,
            _EPS,
            _DECAY,
            master_weights=self.master,
            max_norm=_MAX_NORM if self.clip else None,
        )
        step = torch.zeros((), dtype=torch.int64, device=self.device)
        whole = (self.inputs[name] for name in ("p", "m", "v", "grad"))
        parts = zip(*map(self.parts, whole), strict=True)
        for parameter, (p, m, v, grad) in zip(parameters, parts, strict=True):
            parameter.grad = grad
            state = {"step": step, "exp_avg": m, "exp_avg_sq": v}
            optimizer.state[parameter] = {**state, **({"master": p} if self.master else {})}

        def call() -> Results:
            optimizer.step()
            return self.results()

        prepare = partial(step.fill_, _STEPS_BEFORE)
        return self._in_place(Contender("ninefold", "", call, prepare=prepare))

    def _torch(self, rung: str, **how: bool) -> Contender:
        """A torch optimizer in its tenth step, on our memory. With a master it updates that, and
        what is in 16 bits is copied before and after, as training loops do it."""
        parameters = [torch.nn.Parameter(part) for part in self.parts(self.inputs["p"])]
        optimizer = torch.optim.AdamW(parameters, _LR, _BETAS, _EPS, _DECAY, **how)
        step_optimizer = torch.compile(optimizer.step) if rung == "compile" else optimizer.step
        # foreach counts on the host: a count on the device would make it wait.
        counts_on = "cpu" if how == {"foreach": True} else self.device
        steps = [torch.tensor(0.0, device=counts_on) for _ in parameters]
        grad = self.inputs["grad"]
        widened = torch.empty_like(self.inputs["p"]) if self.master else grad
        parts = zip(*map(self.parts, (self.inputs["m"], self.inputs["v"], widened)), strict=True)
        for parameter, step, (m, v, g) in zip(parameters, steps, parts, strict=True):
            parameter.grad = g
            optimizer.state[parameter] = {"step": step, "exp_avg": m, "exp_avg_sq": v}
        copies = self.parts(self.param) if self.master else []

        def prepare() -> None:
            torch._foreach_zero_(steps)
            torch._foreach_add_(steps, _STEPS_BEFORE)

        @torch.no_grad()
        def call() -> Results:
            if self.master:
                widened.copy_(grad)
            if self.clip:
                torch.nn.utils.clip_grad_norm_(parameters, _MAX_NORM)
            step_optimizer()
            if self.master:
                torch._foreach_copy_(copies, parameters)
            return self.results()

        return self._in_place(Contender(PYTORCH, rung, call, prepare=prepare))

    def _in_place(self, contender: Contender) -> Contender:
        names = ("p", "m", "v", "grad") if self.clip and not self.master else ("p", "m", "v")
        contender.overwrites = [self.inputs[name] for name in names]
        contender.given = [self.param] if self.master else []
        contender.kept = lambda: 0  # there is no backward
        return contender

    def _c_interface(self) -> Contender:
        master = [{"master": part} for part in self.parts(self.inputs["p"])]
        tensors = [
            {"param": param, "grad": grad, "m": m, "v": v, "weight_decay": _DECAY}
            for param, grad, m, v in zip(
                *(self.parts(t) for t in (self.param, *map(self.inputs.get, ("grad", "m", "v")))),
                strict=True,
            )
        ]
        if self.master:
            tensors = [{**one, **of} for one, of in zip(tensors, master, strict=True)]
        call = Call(
            "nf_adamw_step",
            tensors=tensors,
            count=len(tensors),
            lr={"value": _LR},
            step={"value": _STEPS_BEFORE},
            max_grad_norm=_MAX_NORM if self.clip else 0.0,
        )
        return self._in_place(contender(self, [call], self.results()))
