#!/usr/bin/env python3
"""Reads the machine code: what the write-ups promise of a kernel must be in the compiled library.

usage: audit.py LIBRARY [--table] [--tools FOLDER]... RULES.json...

A rules file lies beside its op (ops/<op>/audit.json):

    {"arch": "sm_90a",
     "rules": [{"kernels": "regular expression, searched in the demangled name",
                "why": "one line, printed when the rule is broken",
                "needs": ["LDG.128"], "never": ["LDL", "STL"],
                "registers": 128, "stack": 0}]}

An instruction is named by its opcode and those of its modifiers that matter, in any order:
"LDG.128" is there when the code has LDG.E.EF.128 or LDG.E.128.CONSTANT. Every rule must meet a
kernel, so that one cannot outlive what it was written for. --table prints what was found.

Needs cuobjdump, nvdisasm and c++filt. Exits with 77, which CTest shows as skipped, where there are none.
"""

import argparse
import glob
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

SKIPPED = 77


def find_tools(folders):
    """The environment to run cuobjdump in: its folder is first on PATH, for it calls nvdisasm."""
    folders = [bin for f in folders for bin in (f, *glob.glob(f + "/nvidia/*/bin"))]
    folders += os.environ.get("PATH", "").split(os.pathsep)
    folders += ["/usr/local/cuda/bin"]
    triton = importlib.util.find_spec("triton")
    if triton and triton.submodule_search_locations:
        folders.append(triton.submodule_search_locations[0] + "/backends/nvidia/bin")
    for folder in folders:
        if all(os.access(f"{folder}/{tool}", os.X_OK) for tool in ("cuobjdump", "nvdisasm")):
            return {**os.environ, "PATH": folder + os.pathsep + os.environ.get("PATH", "")}
    return None


def read_kernels(library, arch, environment):
    """{demangled name: {"registers": 40, "stack": 0, "code": {"LDG.E.128": 4, ...}}}"""

    def dump(what):
        command = ["cuobjdump", "-arch", arch, what, library]
        # No check: it fails on a library without code for arch, and then the rules meet no kernel.
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True).stdout

    kernels = {}
    for name, usage in re.findall(r"Function (\S+):\n(.*)", dump("-res-usage")):
        numbers = dict(re.findall(r"(\w+):(\d+)", usage))
        kernels[name] = {"registers": int(numbers["REG"]), "stack": int(numbers["STACK"]), "code": {}}

    code = {}
    instruction = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)")
    for line in dump("-sass").splitlines():
        if "Function :" in line:
            code = kernels[line.split()[-1]]["code"]
        elif found := instruction.match(line):
            code[found[1]] = code.get(found[1], 0) + 1

    plain = subprocess.run(["c++filt"], input="\n".join(kernels), check=True,
                           stdout=subprocess.PIPE, text=True).stdout.splitlines()
    short = (n.replace("(anonymous namespace)::", "").replace("ninefold::cuda::", "") for n in plain)
    return dict(zip(short, kernels.values()))


def count(code, wanted):
    """How many instructions have the wanted opcode and all the wanted modifiers."""
    opcode, *modifiers = wanted.split(".")
    return sum(times for name, times in code.items()
               if name.split(".")[0] == opcode and set(modifiers) <= set(name.split(".")[1:]))


def broken(rule, kernel):
    for wanted in rule.get("needs", []):
        if not count(kernel["code"], wanted):
            yield f"no {wanted}"
    for unwanted in rule.get("never", []):
        if times := count(kernel["code"], unwanted):
            yield f"{times} {unwanted}"
    for limit in ("registers", "stack"):
        if limit in rule and kernel[limit] > rule[limit]:
            yield f"{kernel[limit]} {limit}, and {rule[limit]} allowed"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("rules", nargs="+")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--tools", action="append", default=[], metavar="FOLDER")
    options = parser.parse_args()
    environment = find_tools(options.tools)
    if not environment or not shutil.which("c++filt"):
        print("SKIPPED: no cuobjdump and nvdisasm (pip install --target build/audit-tools "
              "nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm), or no c++filt")
        return SKIPPED

    dumps, faults, rules = {}, 0, 0
    for path in options.rules:
        with open(path) as file:
            page = json.load(file)
        if page["arch"] not in dumps:
            dumps[page["arch"]] = read_kernels(options.library, page["arch"], environment)
        kernels = dumps[page["arch"]]
        for rule in page["rules"]:
            rules += 1
            met = {n: k for n, k in kernels.items() if re.search(rule["kernels"], n)}
            said = [f"{n}: {fault}" for n, k in met.items() for fault in broken(rule, k)]
            if not met:
                said = [f"no kernel matches {rule['kernels']}"]
            for line in said:
                print(f"{path}: {line} ({rule['why']})")
            faults += len(said)

    for arch, kernels in dumps.items() if options.table else ():
        for name, kernel in sorted(kernels.items()):
            seen = {n: count(kernel["code"], n) for n in
                    ("LDG.128", "STG.128", "UBLKCP", "UCGABAR_ARV", "MUFU.EX2", "LDL", "STL")}
            print(arch, f"{kernel['registers']:3} registers", f"{kernel['stack']:3} stack",
                  *(f"{times} {n}" for n, times in seen.items() if times), name.split("(")[0].removeprefix("void "))
    kernels = sum(len(k) for k in dumps.values())
    print(f"{rules} rules on {kernels} kernels, {faults} broken")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
