#!/usr/bin/env python3
"""Each rule of check.py must catch a planted fault, and pass what is allowed."""

import pathlib
import tempfile
import unittest

import check


class Layering(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name).resolve()

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def faults(self, rule, name, text=""):
        self.write(name, text)
        found = list(rule(self.root))
        (self.root / name).unlink()
        return found

    def test_forbidden_includes(self):
        self.write("backend/view.hpp")
        for name, target in [("ops/softmax/softmax.cpp", "verify/tensor.hpp"),
                             ("ops/softmax/cpu.cpp", "ops/softmax/reference.hpp"),
                             ("ops/softmax/cpu.cpp", "backend/cuda/vec.cuh"),
                             ("ops/softmax/cuda.cu", "backend/cpu/vec.hpp"),
                             ("ops/softmax/cpu.cpp", "ops/vector_add/vector_add.hpp"),
                             ("ops/softmax/test.cpp", "backend/view.hpp"),
                             ("ops/softmax/reference.hpp", "ops/softmax/softmax.hpp"),
                             ("backend/view.cpp", "ops/softmax/softmax.hpp"),
                             ("verify/tensor.cpp", "lab/bench.hpp"),
                             ("lab/measure.cpp", "backend/view.hpp"),
                             ("gpt/model.cpp", "backend/view.hpp"),
                             ("cli/main.cpp", "backend/view.hpp"),
                             ("bindings/torch/softmax.cpp", "backend/view.hpp"),
                             ("bindings/torch/softmax.cpp", "ops/softmax/softmax.hpp"),
                             ("include/ninefold/types.h", "backend/view.hpp")]:
            with self.subTest(name=name, target=target):
                self.assertTrue(self.faults(check.check_includes, name, f'#include "{target}"\n'))

    def test_relative_includes_are_seen_through(self):
        self.write("backend/view.hpp")
        self.write("cli/near.hpp")
        self.assertTrue(self.faults(check.check_includes, "cli/main.cpp", '#include "../backend/view.hpp"\n'))
        self.assertFalse(self.faults(check.check_includes, "cli/main.cpp", '#include "near.hpp"\n'))

    def test_allowed_includes(self):
        for name, target in [("ops/softmax/cpu.cpp", "backend/cpu/vec.hpp"),
                             ("ops/softmax/cuda.cu", "ops/softmax/forward.cuh"),
                             ("ops/softmax/bench.cpp", "ops/softmax/reference.hpp"),
                             ("ops/softmax/test_layouts.cpp", "verify/tensor.hpp"),
                             ("cli/main.cpp", "lab/bench.hpp"),
                             ("gpt/model.cpp", "ninefold/softmax.h"),
                             ("backend/cuda/arch.cu", "backend/cuda/arch.hpp")]:
            with self.subTest(name=name, target=target):
                self.assertFalse(self.faults(check.check_includes, name, f'#include "{target}"\n'))

    def test_names(self):
        for name in ("backend/utils.hpp", "lab/common/x.cpp", "ops/softmax/test_helpers.hpp"):
            self.assertTrue(self.faults(check.check_names, name), name)
        self.assertFalse(self.faults(check.check_names, "lab/commonly.cpp"))

    def test_asm(self):
        ptx = 'void f() { asm volatile("mov.u32 %0, 1;"); }\n'
        self.assertTrue(self.faults(check.check_asm, "ops/softmax/forward.cuh", ptx))
        self.assertFalse(self.faults(check.check_asm, "backend/cuda/vec.cuh", ptx))
        self.assertFalse(self.faults(check.check_asm, "ops/softmax/cpu.cpp", "// no asm(here)\n"))
        self.assertFalse(self.faults(check.check_asm, "lab/x.cpp", 'asm volatile("" : : "m"(v) : "memory");\n'))

    def test_headers_compile_alone(self):
        rule = lambda root: check.check_headers(root, "cc", "c++", [])
        self.assertFalse(self.faults(rule, "include/ninefold/a.h", "#include <stdint.h>\nint64_t f(void);\n"))
        self.assertTrue(self.faults(rule, "include/ninefold/a.h", "int64_t f(void);\n"))
        self.assertTrue(self.faults(rule, "include/ninefold/a.h", "class c;\n"))
        self.assertFalse(self.faults(rule, "include/ninefold/a.hpp", "class c;\n"))


if __name__ == "__main__":
    unittest.main()
