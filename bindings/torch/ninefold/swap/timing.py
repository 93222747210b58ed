"""What repeated timings say: a middle value, its interval, and a verdict on a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import comb
from statistics import median
from typing import NamedTuple


class Spread(NamedTuple):
    """A median between the ends of its 95 % interval."""

    low: float
    middle: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.middle:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def spread(samples: Sequence[float]) -> Spread:
    """The median and the order statistics around it that hold the true one in 95 of 100 cases,
    whatever the distribution; the extremes where there are fewer than six samples."""
    ordered, n = sorted(samples), len(samples)
    below = accumulate(comb(n, k) / 2**n for k in range(n))  # that at most k lie under the median
    rank = max(sum(chance <= 0.025 for chance in below) - 1, 0)
    return Spread(ordered[rank], median(ordered), ordered[n - 1 - rank])


def verdict(ratio: Spread) -> str:
    """Of the rival's time over ours, with a band of 2 %: what the whole interval says."""
    if ratio.low > 1.02:
        return "WIN"
    if ratio.high < 0.98:
        return "LOSS"
    return "TIE" if ratio.low >= 0.98 and ratio.high <= 1.02 else "UNCLEAR"
