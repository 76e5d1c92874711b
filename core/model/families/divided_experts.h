#pragma once

#include <cstdint>
#include <functional>

#include "core/model/model_config.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// The operators that ranks which divide a layer's experts run around the products: torchtitan's
// ExpertParallel, version 0.2.2 (distributed/expert_parallel.py), between which each family's
// experts run.
class DividedExperts {
 public:
  // After the router, which has chosen experts for all rows of `build`.
  DividedExperts(WorkloadBuilder& build, const ModelConfig& config);

  // The tokens' rows, one for each expert of a token, sorted by expert.
  void copy_rows();
  // In the experts' module: sends the rows, calls `products` on the rows that came, padded, and
  // sends the results back. `products` gets the rows of each expert of this rank.
  void run(const std::function<void(std::span<const int64_t>)>& products);
  // The weighted sum of each token's results, which waits for them.
  void sum_rows();

 private:
  // Sizes of `part` are per number of `rows` rows of the hidden size.
  void over(int64_t rows, const Unfused& part);
  [[nodiscard]] static double ratio(int64_t a, int64_t b) {
    return static_cast<double>(a) / static_cast<double>(b);
  }

  WorkloadBuilder& build_;
  const ModelConfig& config_;
  int64_t tokens_;  // rows of the tokens that the router has seen
  DividedRouting rows_;
};

}  // namespace shardlens::plan
