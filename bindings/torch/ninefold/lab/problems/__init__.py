"""The ops of the ledger, each with its inputs, its reference and its rivals."""

from ..core import Case
from ..problem import Problem
from .activation import ActivationProblem
from .adamw import AdamWProblem
from .cross_entropy import CrossEntropyProblem
from .dropout import DropoutProblem
from .norm import NormProblem
from .rope import RopeProblem
from .softmax import SoftmaxProblem

# The order of a run with little time: what users ask for first comes first.
PROBLEMS: dict[str, type[Problem]] = {
    "cross_entropy": CrossEntropyProblem,
    "norm": NormProblem,
    "softmax": SoftmaxProblem,
    "activation": ActivationProblem,
    "adamw": AdamWProblem,
    "rope": RopeProblem,
    "dropout": DropoutProblem,
}


def problem_of(case: Case, device: str) -> Problem:
    """The inputs of a case on a device, not filled yet."""
    return PROBLEMS[case.op](case, device)
