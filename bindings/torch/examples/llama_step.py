"""A training step of a Llama with random weights, with and without Ninefold: where its time goes.

    python llama_step.py --out llama.jsonl                       hidden 2048, 8 layers, on a GPU
    python llama_step.py --device cpu --hidden 64 --layers 2 --intermediate 128 --heads 4 \
        --kv-heads 2 --vocab 256 --batch 2 --tokens 64 --dtype float32 --rounds 3   a try on a CPU

First four ways to run it, taken in turn, each in an order that changes: eager, compile, patched,
patched compile. Then, against compile, each swap alone and a loss that makes its gradient in the
forward, over the logits. Every result is printed, and appended to the file as a line of JSON when
it is there, so that a run that is cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers
from torch.autograd import DeviceType
from torch.profiler import profile
from transformers import LlamaConfig, LlamaForCausalLM

import ninefold
from ninefold.swap.loss import causal_lm_loss
from ninefold.swap.timing import spread, verdict
from ninefold.swap.training import Training

SWAPS = "add_rms_norm", "rms_norm", "swiglu", "apply_rotary", "cross_entropy"
GROUPS = {  # of kernels, or on CPU of operators, by what their names have in them
    "ninefold": "ninefold",
    "attention": "flash|fmha|attention|sdpa",
    "matrix products": "gemm|nvjet|cutlass|xmma|addmm|::mm|::bmm|linear",
    "optimizer": "adam|multi_tensor",
    "compiled": "triton|cpp_fused|CompiledF",
    "copies and fills": "memcpy|memset|copy_|fill|zero_",
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {
        "hidden": 2048, "layers": 8, "intermediate": 5632, "heads": 32, "kv-heads": 4,
        "vocab": 32000, "batch": 4, "tokens": 2048,
    }  # fmt: skip
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", help="of parameters and activations")
    parser.add_argument(
        "--autocast", action="store_true", help="fp32 parameters, dtype by autocast"
    )
    parser.add_argument("--rounds", type=int, default=20, help="timed steps of each way")
    parser.add_argument("--budget", type=float, default=480, help="seconds after which to stop")
    parser.add_argument("--out", type=Path, help="file for the lines of JSON")
    return parser.parse_args()


class Bench:
    """The ways to run one model, and what came out so far."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.device = torch.device(options.device)
        self.deadline = time.monotonic() + options.budget
        self.order = random.Random(0)
        self.runs: dict[str, Training] = {}
        self.losses: dict[str, list[float]] = {}  # of every step so far
        ids = torch.randint(options.vocab, (options.batch, options.tokens), device=self.device)
        self.batch = {"input_ids": ids, "labels": ids, "use_cache": False}

    def time_left(self) -> bool:
        return time.monotonic() < self.deadline

    def report(self, kind: str, **row) -> None:
        line = json.dumps({"kind": kind, **row})
        print(line, flush=True)
        if self.options.out:
            with self.options.out.open("a") as file:
                file.write(line + "\n")

    def add(self, name: str, change: Callable | None = None, *, compile: bool = False) -> bool:
        """A model from the same seed, changed, after two steps; False where that fails."""
        if not self.time_left():
            self.report("skipped", mode=name, reason="the budget is spent")
            return False
        options, dtype = self.options, getattr(torch, self.options.dtype)
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=options.hidden,
            intermediate_size=options.intermediate,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            num_key_value_heads=options.kv_heads,
            vocab_size=options.vocab,
            max_position_embeddings=options.tokens,
        )
        try:
            with self.device:
                model = LlamaForCausalLM(config)
            model.to(torch.float32 if options.autocast else dtype).train()
            if change:
                change(model)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            run = Training(
                model, optimizer, compile=compile, autocast=dtype if options.autocast else None
            )
            first = run.step(self.batch, 0)
            second = run.step(self.batch, 1)
        except Exception as error:  # the other ways are worth having without this one
            self.report("failed", mode=name, error=f"{type(error).__name__}: {error}"[:2000])
            return False
        self.runs[name] = run
        self.losses[name] = [first.loss, second.loss]
        self.report("first step", mode=name, seconds=first.seconds, loss=first.loss)
        return True

    def rounds(self, names: list[str]) -> dict[str, list]:
        """Steps of these, taken in turn, as many as there is time for, and at least one of each."""
        steps: dict[str, list] = {name: [] for name in names}
        for step in range(self.options.rounds):
            for name in self.order.sample(names, len(names)):
                taken = self.runs[name].step(self.batch, 2 + step)
                steps[name].append(taken)
                self.losses[name].append(taken.loss)
            if not self.time_left():
                break
        for name, taken in steps.items():
            ms = spread([1e3 * step.seconds for step in taken])
            self.report(
                "steps",
                mode=name,
                steps=len(taken),
                ms=ms,
                tokens_per_second=round(self.batch["labels"].numel() / ms.middle * 1e3),
                peak_bytes=max(step.peak_bytes or 0 for step in taken) or None,
                last_loss=taken[-1].loss,
            )
        return steps

    def compare(self, steps: dict[str, list], name: str, rival: str) -> None:
        """The rival's times over those of `name`, step by step, and how far the two trainings are
        apart, the same number of steps from the start."""
        if name not in steps or rival not in steps:
            return
        pairs = zip(steps[rival], steps[name], strict=True)
        ratio = spread([theirs.seconds / ours.seconds for theirs, ours in pairs])
        losses = zip(self.losses[rival], self.losses[name], strict=False)
        self.report(
            "ratio",
            mode=name,
            rival=rival,
            ratio=ratio,
            verdict=verdict(ratio),
            loss_difference=max(abs(ours - theirs) / theirs for theirs, ours in losses),
        )

    def profile(self, name: str, taken: list) -> Counter:
        """Milliseconds of a step by group, and the slowest kernels. What the kernels leave of the
        steps that were taken before is idle: there the device waits for the host."""
        times = kernels(self.runs[name].profile(self.batch, 1000), self.device.type)
        groups: Counter = Counter()
        for kernel, (_, spent) in times.items():
            groups[group_of(kernel)] += spent
        if self.device.type == "cuda":
            step = 1e3 * spread([step.seconds for step in taken]).middle
            groups["idle"] = max(step - groups.total(), 0.0)
        slowest = sorted(times.items(), key=lambda item: -item[1][1])[:25]
        self.report(
            "profile",
            mode=name,
            groups_ms={group: round(spent, 3) for group, spent in groups.most_common()},
            slowest=[[kernel[:120], calls, round(spent, 3)] for kernel, (calls, spent) in slowest],
        )
        return groups


def kernels(profiler: profile, device: str) -> dict[str, tuple[int, float]]:
    """Calls and milliseconds of each kernel, or on CPU of each operator without those it calls."""
    if device == "cpu":
        return {e.key: (e.count, e.self_cpu_time_total / 1e3) for e in profiler.key_averages()}
    return {
        e.key: (e.count, e.self_device_time_total / 1e3)
        for e in profiler.key_averages()
        if e.device_type != DeviceType.CPU and not e.is_user_annotation
    }


def group_of(kernel: str) -> str:
    found = (group for group, names in GROUPS.items() if re.search(names, kernel, re.IGNORECASE))
    return next(found, "torch's own kernels")


def table(groups: dict[str, Counter]) -> str:
    """Milliseconds by group of kernels, a column for each way."""
    names = sorted({name for counter in groups.values() for name in counter})
    lines = [f"{'ms a step':22}" + "".join(f"{mode:>18}" for mode in groups)]
    for name in names:
        lines.append(f"{name:22}" + "".join(f"{c[name]:18.3f}" for c in groups.values()))
    return "\n".join(lines)


def one_pass_loss(model: LlamaForCausalLM) -> None:
    ninefold.patch(model, ops=set(SWAPS) - {"cross_entropy"})
    model.loss_function = partial(causal_lm_loss, inplace_backward=True, loss_scale=1.0)


def main() -> None:
    bench = Bench(parse())
    # Each way compiles the same functions once more.
    torch._dynamo.config.recompile_limit = 64
    on_cuda = bench.device.type == "cuda"
    bench.report(
        "run",
        options={k: str(v) for k, v in vars(bench.options).items()},
        device=torch.cuda.get_device_name(bench.device) if on_cuda else "CPU",
        torch=torch.__version__,
        transformers=transformers.__version__,
    )
    bench.add("compile", compile=True)
    bench.add("patched compile", ninefold.patch, compile=True)
    bench.add("eager")
    bench.add("patched", ninefold.patch)
    if not bench.runs:
        raise SystemExit("nothing ran")
    steps = bench.rounds(list(bench.runs))
    bench.compare(steps, "patched compile", "compile")
    bench.compare(steps, "patched", "eager")
    bench.compare(steps, "patched", "compile")
    groups = {name: bench.profile(name, taken) for name, taken in steps.items()}
    print(table(groups), flush=True)

    for name in set(bench.runs) - {"compile"}:
        del bench.runs[name]
    alone = {f"compile, {op}": partial(ninefold.patch, ops=op) for op in SWAPS}
    for name, change in {**alone, "patched compile, one-pass loss": one_pass_loss}.items():
        if "compile" in bench.runs and bench.add(name, change, compile=True):
            steps = bench.rounds(["compile", name])
            bench.compare(steps, name, "compile")
            bench.profile(name, steps[name])
            del bench.runs[name]


if __name__ == "__main__":
    main()
