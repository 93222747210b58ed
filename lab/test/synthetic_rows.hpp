// Invented rows with everything a real ledger may hold: wins, losses, ties, unclear ones, rivals
// that are absent or wrong, stale and missing keys, and text that means harm. No number here was
// measured: commit and suite say so.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/report.hpp"

namespace ninefold::lab::synthetic {

using nlohmann::json;

inline constexpr const char* hostile = "</script><b>\"'&<!-- ledger:end softmax-cuda -->";

inline source_hashes sources() {
  return {{{"softmax", "cuda"}, "5a17c0ffee000001"},
          {{"softmax", "cpu"}, "5a17c0ffee000002"},
          {{"vector_add", "cuda"}, "5a17c0ffee000003"}};
}

// The same sequence on every machine, unlike the distributions of <random>.
class noise {
 public:
  double operator()() {  // in [-1, 1)
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 40) / 8388608.0 - 1;
  }

 private:
  uint64_t state_ = 7;
};

struct setting {
  std::string device, name, rival, run;
  double copy, two_to_one;  // GB/s
  std::vector<std::string> rungs;
  std::vector<double> speed;  // of each rung against the ceiling, at large N
};

inline json base(const setting& on, const std::string& op) {
  return {
      {"schema", 1},
      {"op", op},
      {"device", on.device},
      {"device_name", on.name},
      {"commit", "synthetic0"},
      {"suite", "synthetic"},
      {"run", on.run},
      {"started", on.device == "cuda" ? "2026-11-30T08:12:44Z" : "2026-11-30T07:40:02Z"},
      {"sources", sources()[{op, on.device}]},
      {"cache", "cold"},
      {"timer", on.device == "cuda" ? "event" : "steady_clock"},
      {"dirty", false},
      {"clocks",
       {{"before", {{"sm_mhz", 1980}}}, {"after", {{"sm_mhz", 1965}, {"power_capped", false}}}}},
      {"machine", {{"driver", "580.95"}, {"compiler", "g++ 12.2"}, {"flags", "-O3"}}}};
}

inline void add_case(std::vector<json>& rows, const setting& on, const std::string& op,
                     const std::string& direction, const std::string& dtype, int64_t m, int64_t n,
                     const std::string& name, noise& draw) {
  const bool backward = direction == "backward";
  const double ceiling = backward || op == "vector_add" ? on.two_to_one : on.copy;
  const double width = dtype == "fp32" ? 4 : 2;
  const double elements = static_cast<double>(m) * static_cast<double>(n);
  const double read = elements * width * (backward || op == "vector_add" ? 2 : 1);
  const double written = elements * width;
  json shape = {{"M", m}, {"N", n}};
  if (op == "vector_add") shape = {{"N", n}};

  const auto row = [&](const std::string& provider, const std::string& rung, double share) {
    json j = base(on, op);
    const double gbps = ceiling * share;
    const double ms = (read + written) / gbps * 1e-6;
    j.update({{"direction", direction},
              {"dtype", dtype},
              {"shape", shape},
              {"case", name},
              {"options", name == "gpt2-attention" ? json{{"causal", 1024}} : json::object()},
              {"provider", provider},
              {"rung", rung},
              {"ms", ms},
              {"ms_low", ms * 0.996},
              {"ms_high", ms * 1.005},
              {"gbps", gbps},
              {"flops", elements * (backward ? 4 : 5)},
              {"tflops", elements * (backward ? 4 : 5) / ms * 1e-9},
              {"bytes_read", read},
              {"bytes_written", written},
              {"ceiling", backward || op == "vector_add" ? "2:1" : "copy"},
              {"ceiling_gbps", ceiling},
              {"share", share},
              {"peak_bytes", provider == "ninefold" ? 0.0 : elements * 0.25},
              {"kept_bytes", 0},
              {"workspace_bytes", 0},
              {"error", (dtype == "fp32"   ? 6e-8
                         : dtype == "fp16" ? 2.1e-4
                                           : 1.7e-3) *
                            (1 + 0.2 * draw())},
              {"error_ratio", 0.9 + 0.05 * draw()},
              {"worst", 0.3 + 0.05 * draw()},
              {"check", "passed"},
              {"first_call_ms", ms * 40}});
    for (int i = 0; i < 15; ++i) j["samples_ms"].push_back(ms * (1 + 0.004 * draw()));
    return j;
  };

  const double log_n = std::log2(static_cast<double>(n));
  const double fill = std::clamp(elements / (on.device == "cuda" ? 4e7 : 2e5), 0.2, 1.0);
  double best = 0;
  std::string chosen;
  for (size_t i = 0; i < on.rungs.size(); ++i) {
    const double fit = 1 - 0.02 * std::abs(log_n - 8 - 2.2 * static_cast<double>(i));
    const double share = on.speed[i] * std::clamp(fit, 0.45, 1.0) * fill * (1 + 0.01 * draw());
    json j = row("ninefold", on.rungs[i], share);
    j["headline"] = i != 0;
    rows.push_back(j);
    if (share > best) {
      best = share;
      chosen = on.rungs[i];
    }
  }
  const double share = best * (1 + 0.004 * draw());
  json own = row("ninefold", "", share);
  own["launch"] = chosen + " threads=256 vector=16B";
  const double rival_share = std::min(0.985, 0.83 + 0.03 * draw() + (n < 600 ? 0.12 : 0)) * fill;
  const double middle = share / rival_share;
  const double half = 0.006 + 0.006 * std::abs(draw());
  own["ratio"] = {middle * (1 - half), middle, middle * (1 + half)};
  own["rival"] = on.rival;
  own["verdict"] = middle * (1 - half) > 1.02   ? "WIN"
                   : middle * (1 + half) < 0.98 ? "LOSS"
                   : half < 0.009               ? "TIE"
                                                : "UNCLEAR";
  if (own["verdict"] == "LOSS") {
    own["reason"] = "rows too short to hide the reduction behind the loads";
  }
  rows.push_back(own);
  rows.push_back(row(on.rival, "", rival_share));
}

inline std::vector<json> rows() {
  std::vector<json> all;
  noise draw;
  const setting h200{"cuda",
                     "NVIDIA H200",
                     "cuDNN 9.19",
                     "h200-1",
                     4250,
                     4120,
                     {"three_pass", "row_per_warp", "row_per_block", "row_per_cluster", "stream"},
                     {0.31, 0.93, 0.97, 0.975, 0.74}};
  const setting cpu{"cpu",
                    "Xeon, 2 threads",
                    "oneDNN 2.6.3",
                    "cpu-1",
                    27.4,
                    24.8,
                    {"three_pass", "online", "row_per_block"},
                    {0.34, 0.78, 0.9}};
  for (const setting& on : {h200, cpu}) {
    json copy = base(on, "ceiling");
    copy.update({{"provider", "lab"},
                 {"rung", "vector_16B"},
                 {"dtype", "bytes"},
                 {"ceiling", "copy"},
                 {"gbps", on.copy},
                 {"check", "passed"}});
    all.push_back(copy);
    copy.update({{"ceiling", "2:1"}, {"gbps", on.two_to_one}});
    all.push_back(copy);
    copy.update({{"ceiling", "matrix product"}, {"dtype", "bf16"}, {"gbps", nullptr}});
    copy["tflops"] = on.device == "cuda" ? 780.0 : 2.1;
    all.push_back(copy);
    const bool gpu = on.device == "cuda";
    for (const std::string direction : {"forward", "backward"}) {
      for (const std::string dtype : {"fp32", "fp16", "bf16"}) {
        if (!gpu && dtype == "fp16") continue;
        const int64_t scale = gpu ? 64 : 1;
        add_case(all, on, "softmax", direction, dtype, 16384 * scale, 256, "attention-256", draw);
        add_case(all, on, "softmax", direction, dtype, 4096 * scale, 1024, "gpt2-attention", draw);
        add_case(all, on, "softmax", direction, dtype, 1024 * scale, 4096, "llama-attention", draw);
        add_case(all, on, "softmax", direction, dtype, 33, 4097, "odd", draw);
        add_case(all, on, "softmax", direction, dtype, 64 * scale, 50257, "gpt2-vocabulary", draw);
        add_case(all, on, "softmax", direction, dtype, 16 * scale, 262144, "gemma3-vocabulary",
                 draw);
      }
    }
  }
  setting add = h200;
  add.rungs = {"one_element", "four_elements"};
  add.speed = {0.8, 0.985};
  for (const std::string dtype : {"fp32", "bf16"}) {
    add_case(all, add, "vector_add", "forward", dtype, 1, 1 << 20, "small", draw);
    add_case(all, add, "vector_add", "forward", dtype, 1, 1 << 28, "large", draw);
  }

  // The awkward ones, found by what they are: own rows of softmax on the H200.
  std::vector<json*> own, rivals;
  for (json& j : all) {
    if (j["op"] != "softmax" || j["device"] != "cuda") continue;
    if (j["provider"] == "ninefold" && j["rung"] == "") own.push_back(&j);
    if (j["provider"] == "cuDNN 9.19") rivals.push_back(&j);
  }
  (*own[3])["sources"] = "0000000000000bad";  // stale
  (*own[9])["sources"] = "0000000000000bad";
  (*own[4])["dirty"] = true;
  (*own[7])["check"] = "failed";
  (*own[7])["reason"] = "row 12 differs by 0.4 after the timed loop";
  (*own[13])["verdict"] = "LOSS";
  (*own[13])["ratio"] = {0.71, 0.72, 0.73};
  (*own[13])["reason"] = hostile;
  (*own[17])["share"] = 1.04;
  (*own[6])["clocks"]["after"]["power_capped"] = true;
  for (json* rival : {rivals[8], rivals[10]}) {
    (*rival)["check"] = "absent";
    (*rival)["reason"] = "cuDNN refuses this stride";
    for (const char* key : {"ms", "gbps", "tflops", "share", "error", "peak_bytes"})
      (*rival)[key] = nullptr;
  }
  for (json* j : {own[8], own[10]}) {
    for (const char* key : {"ratio", "verdict", "rival"}) (*j)[key] = nullptr;
  }

  all.push_back({{"op", "softmax"}, {"device", "cuda"}, {"device_name", "NVIDIA H200"}});
  all.push_back({{"op", hostile},
                 {"provider", "ninefold"},
                 {"device", hostile},
                 {"ratio", "not a list"},
                 {"shape", 7},
                 {"ms", "fast"},
                 {"case", hostile}});
  all.push_back(json::array({1, 2}));
  // An older run of a case that is also in the newer one.
  json older = *own[0];
  older["run"] = "h200-0";
  older["started"] = "2026-11-01T00:00:00Z";
  older["verdict"] = "LOSS";
  older["ratio"] = {0.1, 0.11, 0.12};
  all.push_back(older);
  return all;
}

}  // namespace ninefold::lab::synthetic
