// What this build was made from, baked in at build time (cmake/Sources.cmake).
#pragma once

#include <string>
#include <vector>

namespace ninefold::lab {

const char* commit();          // short hash, or "unknown" where there was no git
bool dirty();                  // the tree had changes, untracked files included
const char* compiler();        // "GNU 12.2.0"
const char* compiler_flags();  // of C++; of CUDA: see the two below
const char* cuda_compiler();   // "" without CUDA
const char* cuda_flags();

const std::vector<std::string>&
ops();  // every op of this build, in the order of ops/CMakeLists.txt

// First 16 hex digits of the hash of the sources behind an op on "cpu" or "cuda"; "" if unknown.
// The same whether or not CUDA was compiled.
std::string sources(const std::string& op, const std::string& device);

}  // namespace ninefold::lab
