// Which instruction set the CPU kernels use: the best that Highway finds, or NF_CPU_ISA's.
#pragma once

namespace ninefold::cpu {

// The name of the chosen set as Highway spells it ("AVX3_DL", "AVX3", "AVX2", "SSE4", ...). Applies
// NF_CPU_ISA on first use.
const char* isa_name();

// Why the CPU kernels cannot run here, or nullptr: a CPU below what the build needs, or an
// NF_CPU_ISA that is unknown or that this CPU lacks.
const char* why_unavailable();

}  // namespace ninefold::cpu
