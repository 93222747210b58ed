"""Ninefold's ops against what one would use instead, timed by the C++ lab in one process.

    python -m ninefold.lab --device cuda --out rows.jsonl

`core` is the C++ lab (lab/lab.h): it checks, interleaves, times, and makes the rows. What is here
brings it contenders: `problems` has one file per op with its inputs, its float64 reference and who
can do the work; `rivals` finds the libraries. `clocks` and `memory` add the figures that only a
process with PyTorch in it can take. lab/METHOD.md says what each number means.
"""
