#!/usr/bin/env python3
"""Keeps the layout of the sources true: who may include whom, how files may be called, where PTX may
stand, and that each public header compiles alone as C99 (the .h ones) and as C++20."""

import argparse
import pathlib
import re
import subprocess
import sys

SOURCES = {".h", ".hpp", ".cuh", ".c", ".cpp", ".cu"}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:volatile|__volatile__|goto)?\s*(?:volatile)?\s*\(")
BARRIER = re.compile(r'asm\s+volatile\s*\(\s*""')  # no instruction: only stops the optimiser
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)

# Which of the project's folders a file may include from, by the first rule that matches its path.
# {op} is the op's own folder. Public headers are <ninefold/...>.
RULES = [
    (r"include/ninefold/", ["ninefold/"]),
    (r"ops/(?P<op>\w+)/(test[^/]*|bench)\.(cpp|hpp)$",
     ["ninefold/", "ops/{op}/reference.hpp", "ops/{op}/test.hpp", "verify/", "lab/"]),
    (r"ops/(?P<op>\w+)/reference\.hpp$", ["ninefold/", "verify/"]),
    (r"ops/(?P<op>\w+)/cpu\.cpp$", ["ninefold/", "backend/", "ops/{op}/", "!backend/cuda/"]),
    (r"ops/(?P<op>\w+)/.*\.(cu|cuh)$", ["ninefold/", "backend/", "ops/{op}/", "!backend/cpu/"]),
    (r"ops/(?P<op>\w+)/", ["ninefold/", "backend/", "ops/{op}/"]),
    (r"backend/cpu/", ["ninefold/", "backend/", "!backend/cuda/"]),
    (r"backend/cuda/", ["ninefold/", "backend/", "!backend/cpu/"]),
    (r"backend/", ["ninefold/", "backend/"]),
    (r"verify/", ["ninefold/", "verify/"]),
    (r"lab/", ["ninefold/", "lab/", "verify/"]),
    (r"gpt/", ["ninefold/", "gpt/"]),
    (r"bindings/", ["ninefold/", "bindings/"]),
    (r"cli/", ["ninefold/", "gpt/", "lab/", "verify/", "cli/"]),
    (r"tests/backend/", ["ninefold/", "backend/", "verify/"]),
    (r"tests/", ["ninefold/", "verify/", "lab/"]),
]
OURS = ("ninefold/", "ops/", "backend/", "verify/", "lab/", "gpt/", "bindings/", "cli/", "tests/",
        "include/")


def resolve(root, path, target):
    """The path from the root that an include means, or None if it is not one of the project's."""
    if target.startswith(OURS):
        return target
    beside = (path.parent / target).resolve()
    if beside.is_file() and beside.is_relative_to(root):
        return beside.relative_to(root).as_posix()
    return None


def allowed(rule, op, target):
    """Whether `target` is within the rule; "!" takes away what an earlier entry gave."""
    result = False
    for entry in rule:
        if target.startswith(entry.lstrip("!").format(op=op)):
            result = not entry.startswith("!")
    # No op's reference is part of a shipped file.
    return result and not (target.endswith("/reference.hpp") and "backend/" in rule)


def files(root):
    for folder in ("include", "ops", "backend", "verify", "lab", "gpt", "bindings", "cli", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path, path.relative_to(root).as_posix()


def check_names(root):
    for _, name in files(root):
        words = set(re.split(r"[/._\-]", name.lower()))
        if words & FORBIDDEN_NAMES:
            yield f"{name}: a name that says nothing ({', '.join(words & FORBIDDEN_NAMES)})"


def check_includes(root):
    for path, name in files(root):
        if path.suffix not in SOURCES:
            continue
        for pattern, rule in RULES:
            match = re.match(pattern, name)
            if match:
                break
        else:
            yield f"{name}: no rule says what it may include"
            continue
        op = match.groupdict().get("op") or ""
        for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
            found = resolve(root, path, target)
            if found and not allowed(rule, op, found):
                yield f"{name}: must not include {found}"


def check_asm(root):
    for path, name in files(root):
        if path.suffix not in SOURCES or name.startswith("backend/cuda/"):
            continue
        text = BARRIER.sub("", path.read_text(encoding="utf-8"))
        if ASM.search(COMMENT_OR_STRING.sub('""', text)):
            yield f"{name}: assembly belongs under backend/cuda/"


def check_headers(root, cc, cxx, include):
    flags = ["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{root / 'include'}"]
    flags += [f"-idirafter{folder}" for folder in include]
    for header in sorted((root / "include" / "ninefold").iterdir()):
        languages = [(cxx, "c++", "-std=c++20")]
        if header.suffix == ".h":
            languages.append((cc, "c", "-std=c99"))
        for compiler, language, standard in languages:
            done = subprocess.run([compiler, "-x", language, standard, *flags, "-"], text=True,
                                  input=f"#include <ninefold/{header.name}>\n", capture_output=True)
            if done.returncode:
                yield f"{header.name} does not compile alone as {standard[5:]}:\n{done.stderr}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--include", action="append", default=[], help="where dlpack/ is")
    options = parser.parse_args()
    root = options.root.resolve()
    faults = [*check_names(root), *check_includes(root), *check_asm(root),
              *check_headers(root, options.cc, options.cxx, options.include)]
    for fault in faults:
        print(fault)
    print(f"layering: {len(faults)} faults in {sum(1 for _ in files(root))} files")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
