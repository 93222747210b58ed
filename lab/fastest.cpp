#include "lab/fastest.hpp"

#include <ninefold/ninefold.hpp>

namespace ninefold::lab {
namespace {

int run(void* context, void* stream) {
  try {
    static_cast<const alternative*>(context)->call(stream);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace

size_t fastest_of(const std::vector<alternative>& alternatives, const nf_lab_options& options) {
  std::vector<nf_lab_contender> contenders;
  for (const alternative& one : alternatives)
    contenders.push_back({one.name.c_str(), run, const_cast<alternative*>(&one), 0, nullptr});
  nf_lab_measurement* m = nullptr;
  const nf_status status =
      nf_lab_measure(&options, contenders.data(), static_cast<int>(contenders.size()), &m);
  if (status != NF_OK) throw error(status, nf_lab_last_error());
  size_t best = alternatives.size();
  double least = 0;
  for (size_t i = 0; i < alternatives.size(); ++i) {
    const nf_lab_times t = nf_lab_times_of(m, static_cast<int>(i));
    if (t.failed || (best < alternatives.size() && t.median_ms >= least)) continue;
    best = i;
    least = t.median_ms;
  }
  nf_lab_free(m);
  return best;
}

}  // namespace ninefold::lab
