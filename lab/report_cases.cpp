// Cases and their totals, once the rows are in place.
#include <algorithm>
#include <cmath>

#include "lab/report_rows.hpp"

namespace ninefold::lab::report {

std::optional<double> measured_case::middle() const {
  if (!own || !own->passed() || !own->ratio) return std::nullopt;
  return (*own->ratio)[1];
}

const row* measured_case::rival() const {
  if (!own || own->rival.empty()) return nullptr;
  for (const row* r : rows()) {
    if (r != own && r->label() == own->rival) return r;
  }
  return nullptr;
}

std::optional<double> measured_case::rival_ms() const {
  if (const row* r = rival()) return r->ms;
  if (!own) return std::nullopt;
  // An op that is nothing but a stream has the ceiling itself for a rival.
  const auto total = own->bytes_read.value_or(0) + own->bytes_written.value_or(0);
  if (own->rival.starts_with("ceiling") && own->ceiling_gbps && *own->ceiling_gbps > 0 && total > 0)
    return total / *own->ceiling_gbps * 1e-6;
  return std::nullopt;
}

std::string measured_case::title() const {
  std::string text = case_name;
  for (const auto& [name, value] : options) {
    text += (text.empty() ? "" : ", ") + name + " " + std::to_string(value);
  }
  return text;
}

std::vector<const row*> measured_case::rows() const {
  std::vector<const row*> all;
  if (own) all.push_back(own);
  all.insert(all.end(), rungs.begin(), rungs.end());
  all.insert(all.end(), rivals.begin(), rivals.end());
  return all;
}

int64_t measured_case::width() const {
  for (const auto& [name, size] : shape) {
    if (name == "N") return size;
  }
  return shape.empty() ? 0 : shape.back().second;
}

int64_t measured_case::elements() const {
  double product = 1;  // in double: a hostile shape may not overflow
  for (const auto& [name, size] : shape) product *= static_cast<double>(size);
  return static_cast<int64_t>(std::clamp(product, -9e18, 9e18));
}

std::pair<outcome, double> measured_case::rank() const { return {result(), middle().value_or(0)}; }

std::vector<const measured_case*> op_group::losses_first() const {
  std::vector<const measured_case*> order = all_cases(*this);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  return order;
}

void ratio_mean::add(double ratio) {
  logarithms_ += std::log(ratio);
  ++count_;
}

std::optional<double> ratio_mean::value() const {
  if (count_ == 0) return std::nullopt;
  return std::exp(logarithms_ / count_);
}

totals count(const std::vector<const measured_case*>& cases) {
  totals t;
  ratio_mean ratios;
  for (const measured_case* c : cases) {
    ++t.cases[c->result()];
    if (c->own && c->own->stale) ++t.stale_cases;
    for (const row* r : c->rows()) {
      t.absent_rows += r->check == "absent";
      t.failed_rows += r->check == "failed";
    }
    const auto middle = c->middle();
    if (!middle) continue;
    ++t.rated;
    ratios.add(*middle);
    if (!t.worst || *middle < *t.worst->middle()) t.worst = c;
    if (!t.best || *middle > *t.best->middle()) t.best = c;
  }
  t.geometric_mean = ratios.value().value_or(0);
  return t;
}

std::vector<const measured_case*> all_cases(const op_group& op) {
  std::vector<const measured_case*> all;
  for (const measured_case& c : op.cases) all.push_back(&c);
  return all;
}

std::vector<const measured_case*> all_cases(const device_group& device) {
  std::vector<const measured_case*> all;
  for (const op_group& op : device.ops) {
    const auto more = all_cases(op);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace ninefold::lab::report
