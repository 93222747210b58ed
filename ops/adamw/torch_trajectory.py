#!/usr/bin/env python3
"""Records what torch.optim.AdamW does over 50 steps, in float64: torch_trajectory.json,
and the same as test_torch.cpp.

Run with PyTorch installed, in this folder: python3 torch_trajectory.py
Parameters and gradients come from integer formulas that are exact in fp32, so that the test makes
the same ones by itself; see test_faults.cpp.
"""
import json
import torch

SIZES, STEPS, KEPT = [7, 64, 33], 50, [1, 2, 10, 50]
LR, BETAS, EPS = 0.0078125, (0.9, 0.999), 1e-8
WEIGHT_DECAY, LR_SCALE = [0.125, 0.0, 0.5], [1.0, 0.5, 2.0]


def start(k, i):
    return ((i * 7919 + k * 4801) % 2003 - 1001) / 1024


def gradient(k, i, step):
    return ((i * 7919 + step * 10473 + k * 12997) % 2003 - 1001) / 16384


def main():
    parameters = [
        torch.nn.Parameter(torch.tensor([start(k, i) for i in range(n)], dtype=torch.float64))
        for k, n in enumerate(SIZES)
    ]
    groups = [
        dict(params=[p], weight_decay=WEIGHT_DECAY[k], lr=LR * LR_SCALE[k])
        for k, p in enumerate(parameters)
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, foreach=False)
    record = dict(torch=torch.__version__, sizes=SIZES, lr=LR, betas=BETAS, eps=EPS,
                  weight_decay=WEIGHT_DECAY, lr_scale=LR_SCALE, steps=[])
    for step in range(1, STEPS + 1):
        for k, p in enumerate(parameters):
            p.grad = torch.tensor([gradient(k, i, step) for i in range(p.numel())],
                                  dtype=torch.float64)
        optimizer.step()
        if step in KEPT:
            state = [optimizer.state[p] for p in parameters]
            record["steps"].append(dict(
                step=step,
                p=[p.tolist() for p in parameters],
                m=[s["exp_avg"].tolist() for s in state],
                v=[s["exp_avg_sq"].tolist() for s in state]))
    with open("torch_trajectory.json", "w") as out:
        json.dump(record, out)
        out.write("\n")
    with open("test_torch.cpp", "w") as out:
        out.write(f"// Made by torch_trajectory.py from torch {torch.__version__}: step, tensor, p, m, v.\n"
                  '#include "ops/adamw/test.hpp"\n\n'
                  "namespace ninefold::adamw_test {\n\n"
                  "// clang-format off\n"
                  "std::vector<recorded> torch_trajectory() {\n"
                  "  return {\n")
        for at in record["steps"]:
            for k in range(len(SIZES)):
                values = ", ".join("{" + ", ".join(map(repr, at[x][k])) + "}" for x in "pmv")
                out.write(f"    {{{at['step']}, {k}, {values}}},\n")
        out.write("  };\n}\n\n}  // namespace ninefold::adamw_test\n")


main()
