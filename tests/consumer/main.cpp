// A user's program, seen by both consumer projects.
#include <cmath>
#include <cstdio>
#include <ninefold/ninefold.hpp>
#include <vector>

int main() {
  std::vector<float> x = {1, 2, 3, 4}, y(4);
  const ninefold::view vx(x.data(), {1, 4}), vy(y.data(), {1, 4});
  ninefold::softmax({.x = vx, .y = vy});
  std::printf("ninefold %s (%s): %s\n", nf_version(), nf_build_info(), nf_last_launch());
  if (std::fabs(y[0] + y[1] + y[2] + y[3] - 1) > 1e-6f || !(y[3] > y[2])) return 1;
  try {
    ninefold::softmax({.x = vx});
  } catch (const ninefold::error& e) {
    return e.status() == NF_INVALID_ARGUMENT ? 0 : 1;
  }
  return 1;
}
