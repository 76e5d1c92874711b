#include "core/model/families/joined_projections.h"

namespace shardlens::plan {

void copied_projections(WorkloadBuilder& build,
                        const ModelConfig& config,
                        const std::string& product,
                        bool bias) {
  const int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  build.linear(product, {.in = config.hidden_size, .out = q + 2 * kv, .bias = bias});
  const auto all = static_cast<double>(q + 2 * kv);
  const double queries = static_cast<double>(q) / all, keys = static_cast<double>(kv) / all;
  const Piece forward[] = {{.name = "aten::clone", .read = queries, .written = queries},
                           {.name = "aten::clone", .read = keys, .written = keys},
                           {.name = "aten::clone", .read = keys, .written = keys}};
  const Piece backward[] = {{.name = "aten::cat", .read = 1, .written = 1}};
  build.unfused({forward, backward}, OperatorKind::kElementwise, q + 2 * kv);
}

void put_rotated_together(WorkloadBuilder& build, int64_t q, int64_t kv) {
  const auto all = static_cast<double>(q + 2 * kv);
  const double queries = static_cast<double>(q) / all, keys = static_cast<double>(kv) / all;
  const uint32_t sum = takes_before(1) | takes_before(2);
  const Piece forward[] = {
      {.name = "aten::cat", .read = queries, .written = queries},
      {.name = "aten::cat", .read = keys, .written = keys},
  };
  const Piece backward[] = {
      {.name = "aten::slice_backward", .written = keys},
      {.name = "aten::add_", .read = 2 * keys, .written = keys},
      {.name = "aten::slice_backward", .written = queries, .takes = kTakesGradient},
      {.name = "aten::add_", .read = 2 * queries, .written = queries},
      {.name = "aten::slice_backward", .read = keys, .written = 1, .takes = takes_before(3)},
      {.name = "aten::slice_backward", .read = keys, .written = 1, .takes = kTakesGradient},
      {.name = "aten::add_", .read = 2, .written = 1, .takes = sum},
      {.name = "aten::slice_backward", .read = queries, .written = 1, .takes = takes_before(4)},
      {.name = "aten::add_", .read = 2, .written = 1, .takes = sum},
  };
  build.unfused({forward, backward, queries + keys}, OperatorKind::kElementwise, q + 2 * kv);
}

}  // namespace shardlens::plan
