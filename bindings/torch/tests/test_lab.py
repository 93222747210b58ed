"""The ledger against the rivals: contenders are right, wrong ones are refused, rows are complete,
and the figures that only Python takes are what they say."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from ninefold.lab import __main__ as lab
from ninefold.lab import clocks
from ninefold.lab.case import CaseRunner
from ninefold.lab.contender import Contender, Function
from ninefold.lab.core import Case, Run
from ninefold.lab.judge import compare
from ninefold.lab.memory import kept_bytes, peak_bytes
from ninefold.lab.problem import Trial
from ninefold.lab.problems import dropout, problem_of
from ninefold.lab.problems.softmax import SoftmaxProblem

SCHEMA = json.loads((Path(__file__).parents[3] / "lab" / "schema.json").read_text())
ROW = {"M": 6, "N": 64}
HEADS = {"B": 1, "S": 8, "Hq": 4, "Hk": 2, "D": 16}
CASES = [
    ("softmax", ROW, {}),
    ("softmax", ROW, {"log": 1, "offset": 1}),
    ("softmax", {"M": 16, "N": 8}, {"causal": 8}),
    ("softmax", {"M": 8, "N": 12}, {"causal": 4}),
    ("cross_entropy", {"N": 6, "V": 50}, {}),
    ("cross_entropy", {"N": 6, "V": 50}, {"in_place": 1}),
    ("cross_entropy", {"N": 6, "V": 50}, {"in_place": 1, "all_options": 1}),
    ("norm", ROW, {}),
    ("norm", ROW, {"residual": 1}),
    ("norm", ROW, {"layer": 1}),
    ("norm", ROW, {"layer": 1, "residual": 1}),
    ("rope", HEADS, {}),
    ("rope", HEADS, {"interleaved": 1}),
    ("activation", ROW, {"kind": 0}),
    ("activation", ROW, {"kind": 1, "bias": 1}),
    ("activation", ROW, {"kind": 2, "gated": 1}),
    ("dropout", {"M": 64, "N": 64}, {}),
    ("dropout", {"M": 64, "N": 64}, {"residual": 1}),
    ("adamw", {"P": 4096}, {"tensors": 4}),
    ("adamw", {"P": 4096}, {"tensors": 4, "clip": 1}),
]
OURS_AND_EAGER = ("ninefold", "PyTorch")  # the libraries are checked where they are timed
BACKWARD_AND_BOTH = {"cross_entropy", "norm", "activation"}


def a_case(op: str, direction: str, dtype: str, sizes: dict, options: dict) -> Case:
    return Case(0, op, direction, dtype, "test", sizes, options, 0)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("op", "sizes", "options"), CASES)
def test_everyone_computes_the_same(op, sizes, options, dtype, device):
    directions = ["forward"] if op == "adamw" else ["forward", "backward"]
    directions += ["forward_backward"] * (op in BACKWARD_AND_BOTH)
    for direction in directions:
        case = a_case(op, direction, dtype, sizes, options)
        trial = Trial(problem_of(case, device), direction)
        trial.fill(3)
        inputs = [tensor.clone() for tensor in trial.inputs]
        asked = 0
        for entry in trial.entrants:
            assert bool(entry.absent) == (entry.contender.call is None), entry.absent
            assert not (entry.absent and entry.contender.ours), entry.absent
            if entry.rung.startswith("compile") or not entry.provider.startswith(OURS_AND_EAGER):
                continue
            for _ in range(2):  # the second finds what the first has used up put back
                trial.poison()
                entry.restore()
                entry.call()
                error = trial.check()
                label = f"{entry.contender.label} {direction}: {error}"
                assert error.worst <= entry.allowance, label
                if entry.contender.prepare is None:
                    entry.restore()
                    assert all(map(torch.equal, inputs, (t.detach() for t in trial.inputs))), label
            asked += 1
        assert asked >= 3, "ours, ours through C, and eager at least"


def test_given_outputs_are_written_by_all(device):
    trial = Trial(
        problem_of(a_case("softmax", "forward", "fp32", ROW, {"given": 1}), device), "forward"
    )
    trial.fill(1)
    assert [e.contender.label for e in trial.entrants[:2]] == [
        "ninefold",
        trial.entrants[1].provider + " eager out=",
    ]
    for entry in trial.entrants[:2]:
        trial.poison()
        assert trial.results == {} and entry.contender.given[0].isnan().all()
        entry.call()
        assert trial.check().worst <= 1


def rows_of(tmp_path, *arguments: str) -> list[dict]:
    out = tmp_path / "rows.jsonl"
    code = lab.main(["--device", "cpu", "--each", "0.05", "--out", str(out), *arguments])
    assert code == 0
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def test_rows_are_complete(tmp_path):
    rows = rows_of(tmp_path, "--op", "softmax", "--case", "tiny", "--direction", "backward")
    for row in rows:
        assert set(SCHEMA["required"]) <= set(row) <= set(SCHEMA["properties"])
    by_name = {f"{r['provider']} {r['rung']}".rstrip(): r for r in rows if r["op"] == "softmax"}
    torch_name = f"PyTorch {torch.__version__.partition('+')[0]}"
    own, eager = by_name["ninefold"], by_name[f"{torch_name} eager"]
    assert own["rival"] in by_name and own["verdict"] and len(own["ratio"]) == 3
    assert own["suite"].startswith("rivals ") and own["machine"]["baselines"]["PyTorch"]
    for row in own, eager, by_name["ninefold c_interface"], by_name[f"{torch_name} compile"]:
        assert row["check"] == "passed" and row["ms"] > 0 and row["error"] < 1e-6
        assert len(row["samples_ms"]) >= 3
    assert own["kept_bytes"] == eager["kept_bytes"] == 8 * 16 * 4  # y
    assert by_name[f"{torch_name} compile"]["first_call_ms"] > 10 * own["first_call_ms"]
    absent = [row for name, row in by_name.items() if "Liger" in name or "QuACK" in name]
    assert len(absent) == 2
    assert all(row["check"] == "absent" and row["reason"] for row in absent)
    assert rows[-1]["provider"] == "lab" and rows[-1]["ms"] > 0


def test_rows_are_valid_by_the_schema(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    arguments = ["--op", "norm", "--case", "rms-tiny", "--without", "compile"]
    rows = rows_of(tmp_path, *arguments)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for row in rows:
        row["ratios"] = {"call_ms": {"rival": "x", "ratio": [1, 2, 3], "verdict": "WIN"}}
        assert not [error.message for error in validator.iter_errors(row)]
    assert rows


@pytest.fixture
def run():
    opened = Run("cpu", "rivals", 1, {})
    yield opened
    opened.close()


def tiny(run: Run) -> Case:
    return next(c for c in run.cases if str(c) == "softmax forward fp32 tiny")


def with_functions(monkeypatch, run: Run, *functions: Function) -> dict[str, dict]:
    """The rows of a case in which these compete with our own function."""
    monkeypatch.setattr(
        SoftmaxProblem,
        "functions",
        lambda self: [Function("ninefold", "", self.reference), *functions],
    )
    monkeypatch.setattr(SoftmaxProblem, "others", lambda self, direction: [])
    rows = CaseRunner(run, "cpu", 0.05).rows_of(tiny(run))
    return {row["provider"]: row for row in rows}


def test_who_is_wrong_is_refused(monkeypatch, run):
    kept = []

    def cached(x):
        if not kept:
            kept.append(x.softmax(-1))
        return kept[0].clone()

    def first_row(x):
        return torch.cat((x[:1].softmax(-1), torch.full_like(x[1:], float("nan"))))

    def raising(x):
        raise RuntimeError("no such kernel")

    def unable(x):
        raise NotImplementedError("not this shape")

    rows = with_functions(
        monkeypatch,
        run,
        Function("honest", "", lambda x: x.softmax(-1)),
        Function("off", "", lambda x: x.softmax(-1) * 1.01),
        Function("cached", "", cached),
        Function("unwritten", "", first_row),
        Function("raising", "", raising),
        Function("unable", "", unable),
        Function("shape", "", lambda x: x.softmax(-1)[:-1]),
    )
    assert rows["ninefold"]["check"] == rows["honest"]["check"] == "passed"
    assert rows["ninefold"]["rival"] == "honest"
    for name in "off", "cached", "unwritten", "raising", "shape":
        assert rows[name]["check"] == "failed" and rows[name]["ms"] is None, name
    assert "after the timed loop" in rows["cached"]["reason"]
    assert "no such kernel" in rows["raising"]["reason"]
    assert rows["unable"]["check"] == "absent" and "not this shape" in rows["unable"]["reason"]


def test_inputs_are_put_back_for_the_next(monkeypatch, run):
    def overwriting(x):
        with torch.no_grad():
            return x.copy_(x.softmax(-1))

    honest = Function("honest", "", lambda x: x.softmax(-1))
    declared = Function("in place", "", overwriting, forward_overwrites=("x",))
    rows = with_functions(monkeypatch, run, declared, honest)
    assert {row["check"] for row in rows.values()} == {"passed"}


def test_a_case_that_cannot_be_set_up_is_a_row(monkeypatch, run):
    def no_memory(self, case, device):
        raise torch.OutOfMemoryError("20 TiB were asked for")

    monkeypatch.setattr(SoftmaxProblem, "__init__", no_memory)
    (row,) = [r for r in CaseRunner(run, "cpu", 0.05).rows_of(tiny(run)) if r["op"] == "softmax"]
    assert row["check"] == "absent" and "20 TiB" in row["reason"]


def test_a_run_ends_with_its_time(tmp_path):
    assert rows_of(tmp_path, "--op", "softmax", "--seconds", "0") == []


class KeepsToItself(torch.autograd.Function):
    """What saved_tensors_hooks do not see."""

    @staticmethod
    def forward(ctx, x):
        ctx.doubled = x * 2
        return x + 1

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.doubled


N = 1 << 16


@pytest.mark.parametrize(
    ("function", "elements"),
    [
        (lambda x: x * x, 0),  # the input alone
        (lambda x: x.exp(), N),  # its own result
        (lambda x: x.exp().exp(), 2 * N),
        (lambda x: x + 1, 0),
        (KeepsToItself.apply, N),
    ],
)
def test_kept_bytes(function, elements, device):
    x = torch.randn(N, device=device, requires_grad=True)
    kept = kept_bytes(lambda: (function(x),), [x])
    assert abs(kept - 4 * elements) < 1024


@pytest.mark.parametrize(
    ("function", "elements"),
    [
        (lambda x: x + 1, 0),  # its output is not counted
        (lambda x: (x + 1).sum(), N),
        (lambda x: x.add_(1), 0),
        (lambda x: torch.cat((x + 1, x + 2)).sum(), 4 * N),
    ],
)
def test_peak_bytes(function, elements, device):
    x = torch.randn(N, device=device)
    assert abs(peak_bytes(lambda: [function(x)], [x]) - 4 * elements) < 1024


def test_errors_are_counted_in_roundings():
    exact = torch.linspace(-3, 3, 999, dtype=torch.float64)
    for dtype in torch.float32, torch.float16, torch.bfloat16:
        assert compare(exact.to(dtype), exact).worst <= 0.75  # one rounding
        assert compare((exact * 1.03).to(dtype), exact).worst > 4
    one_off = exact.float()
    one_off[7] += 1e-3
    assert compare(one_off, exact).worst > 4 and compare(one_off, exact).rel_l2 < 1e-4
    hidden = exact.clone()
    hidden[3] = float("-inf")
    assert compare(hidden.float(), hidden).worst <= 1
    assert compare(exact.float(), hidden).worst == compare(hidden.float(), exact).worst == torch.inf
    zeros = torch.zeros(10, dtype=torch.float64)
    assert compare(zeros.float(), zeros).worst == 0
    assert compare(torch.where(zeros.float() == 0, torch.nan, 0), zeros).worst == torch.inf
    flushed = torch.zeros(10).half()
    assert compare(flushed, torch.full((10,), 1e-12, dtype=torch.float64)).flushed == 1
    # A token's gradient: one class has all but all of it, and half steps are lost in the others.
    gradient = torch.full((1 << 17,), 2.0**-25, dtype=torch.float64)
    gradient[0] = 2.0**-12
    assert compare(gradient.half(), gradient).worst <= 1
    assert compare(gradient.half() * 1.03, gradient).worst > 4


@pytest.mark.parametrize(
    ("sizes", "options"),
    [({"M": 1024, "N": 256}, {"causal": 256}), ({"M": 64, "N": 50257}, {"log": 1})],
)
def test_softmax_is_held_against_the_gradient_of_what_it_kept(sizes, options):
    case = Case(0, "softmax", "backward", "bf16", "rounded y", sizes, options, 0)
    problem = SoftmaxProblem(case, "cpu")
    problem.fill(1)
    expected = problem.expected("backward")
    upstream = problem.upstream[0]
    for function in problem.ours, problem.eager:
        x = problem.inputs["x"]
        (dx,) = torch.autograd.grad(function(x), x, upstream)
        assert problem.judge({"dx": dx}, expected).worst <= 1
        assert problem.judge({"dx": 1.03 * dx}, expected).worst > 1


def test_dropout_is_recognised_where_kept_and_dropped_differ(monkeypatch):
    monkeypatch.setattr(dropout, "_ELEMENTS", 1 << 15)  # several pieces
    sizes, options = {"M": 1024, "N": 1024}, {"residual": 1}
    case = Case(0, "dropout", "forward", "bf16", "residual", sizes, options, 0)
    problem = dropout.DropoutProblem(case, "cpu")
    problem.fill(1)
    expected = problem.expected("forward")
    y = problem.ours(*problem.inputs.values())
    assert problem.judge({"y": y}, expected).worst <= 1
    y[7, 7] += 0.5
    assert problem.judge({"y": y}, expected).worst > 1
    with pytest.raises(ValueError, match="is dropped"):
        problem.judge({"y": F.dropout(y, 0.01)}, expected)


def test_kernel_times_belong_to_the_call_they_began_in():
    def event(cat, name, ts, dur):
        return {"cat": cat, "name": name, "ts": ts, "dur": dur}

    marks = [
        ("ninefold.lab call 1", 100),
        ("ninefold.lab call 0", 300),
        ("ninefold.lab call 1", 500),
    ]
    events = [event("user_annotation", name, at, 100) for name, at in marks]
    events += [
        event("kernel", "flush", 50, 1000),
        event("kernel", "a", 110, 20),
        event("gpu_memcpy", "b", 150, 30),
        event("kernel", "c", 390, 40),
        event("kernel", "d", 510, 60),
        event("cuda_runtime", "launch", 520, 5),
        {"ph": "M"},
    ]
    assert clocks.kernel_times(events, 3) == [[0.04], [0.05, 0.06], []]
    assert clocks.kernel_times(events[:3], 2) == [[], []], "a blind profiler"


def test_other_clocks_have_ratios_of_their_own(run):
    class Named:
        def __init__(self, provider, rung="", headline=True):
            self.contender = Contender(provider, rung)
            self.provider, self.rung, self.headline = provider, rung, headline

    entrants = [Named("ninefold"), Named("A"), Named("B", "eager"), Named("ninefold", "c", False)]
    rows = [{"provider": e.provider, "rung": e.rung} for e in entrants]
    samples = {
        "host_ms": [[1.0, 2.0, 1.0], [3.0, 6.0, 3.0], [2.0, 4.0, 2.0], [0.1, 0.1, 0.1]],
        "call_ms": [[4.0, 4.0, 4.0], [2.0, 2.0, 2.0], [], [1.0, 1.0, 1.0]],
    }
    clocks.add_to_rows(rows, entrants, samples, run)
    assert [row.get("host_ms") for row in rows] == [1.0, 3.0, 2.0, 0.1]
    assert rows[0]["ratios"] == {
        "host_ms": {"rival": "B eager", "ratio": [2.0, 2.0, 2.0], "verdict": "WIN"},
        "call_ms": {"rival": "A", "ratio": [0.5, 0.5, 0.5], "verdict": "LOSS"},
    }
    assert "ratios" not in rows[1]
