#pragma once

#include <cstdint>
#include <functional>

#include "core/model/model_config.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// The operators of ranks that divide a layer's experts, between which each family's
// experts run: torchtitan's ExpertParallel, version 0.2.2 (distributed/expert_parallel.py), or of
// 0.3 its AllToAllTokenDispatcher (models/common/token_dispatcher.py), or with
// ExpertDispatch::kAllGather what [Note: Gathered tokens] describes, with kDeepEp
// [Note: Tokens sent once].
class DividedExperts {
 public:
  // After the router, which has chosen experts for all rows of `build`.
  DividedExperts(WorkloadBuilder& build, const ModelConfig& config);

  // Called with the rows of each expert of this rank.
  using Products = std::function<void(std::span<const int64_t>)>;

  // The tokens' rows, one for each expert of a token, sorted by expert.
  void copy_rows();
  // In the experts' module: sends the rows, calls `products` on the rows that came, padded, and
  // sends the results back.
  void run(const Products& products);
  // The weighted sum of each token's results, which waits for them.
  void sum_rows();

 private:
  void run_unpadded(const Products& products);  // of torchtitan 0.3
  void run_on_all(const Products& products);
  void run_on_sent_once(const Products& products);
  // Sizes of `part` are per number of `rows` rows of the hidden size.
  void over(int64_t rows, const Unfused& part);
  [[nodiscard]] static double ratio(int64_t a, int64_t b) {
    return static_cast<double>(a) / static_cast<double>(b);
  }

  WorkloadBuilder& build_;
  const ModelConfig& config_;
  int64_t tokens_;  // rows of the tokens that the router has seen
  bool copies_;     // the tokens' rows before they are sent
  DividedRouting rows_;
};

}  // namespace shardlens::plan
