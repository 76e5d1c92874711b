#include "core/model/families/weighted_experts.h"

#include <vector>

#include "core/workload/unfused.h"

namespace shardlens::plan {

void expert_scores(WorkloadBuilder& build, int64_t experts) {
  build.elementwise("aten::softmax", "aten::_softmax_backward_data",
                    {.read = experts,
                     .written = experts,
                     .saved = experts,
                     .flops = 5 * experts,
                     .backward_read = 2 * experts,
                     .backward_written = experts,
                     .backward_flops = 3 * experts});
}

void copy_expert_rows(WorkloadBuilder& build, int64_t copies, double token) {
  const Piece forward[] = {{.name = "aten::index", .read = 1, .written = 1}};
  const Piece backward[] = {
      {.name = "aten::new_zeros", .written = token, .takes = kTakesSaved},
      {.name = "aten::index_put",
       .read = 1 + token,
       .written = token,
       .takes = kTakesGradient | takes_before(1)},
  };
  build.unfused({forward, backward}, OperatorKind::kElementwise, copies);
}

void weighted_expert_sum(WorkloadBuilder& build, int64_t copies, double token, bool wide) {
  const double f32 = wide ? 1 : 0, own = wide ? 0 : 1;
  std::vector<Piece> forward{
      {.name = "aten::mul", .read = 1, .written = own, .written_f32 = f32},
      {.name = "aten::index", .read = own, .read_f32 = f32, .written = own, .written_f32 = f32},
      {.name = "aten::sum",
       .read = own,
       .read_f32 = f32,
       .written = own * token,
       .written_f32 = f32 * token},
  };
  std::vector<Piece> backward{
      {.name = "aten::clone",
       .read = own * token,
       .read_f32 = f32 * token,
       .written = own,
       .written_f32 = f32},
      {.name = "aten::new_zeros", .written = own, .written_f32 = f32, .takes = kTakesSaved},
      {.name = "aten::index_put",
       .read = 2 * own,
       .read_f32 = 2 * f32,
       .written = own,
       .written_f32 = f32,
       .takes = takes_before(1) | takes_before(2)},
      {.name = "aten::mul", .read = 1 + own, .read_f32 = f32, .written = own, .written_f32 = f32},
      {.name = "aten::mul",
       .read = own,
       .read_f32 = f32,
       .written = own,
       .written_f32 = f32,
       .takes = takes_before(2)},
      {.name = "aten::sum", .read = own, .read_f32 = f32, .takes = takes_before(2)},
  };
  if (wide) {
    forward.push_back({.name = "aten::_to_copy", .read_f32 = token, .written = token});
    backward.push_back(
        {.name = "aten::_to_copy", .read_f32 = 1, .written = 1, .takes = takes_before(2)});
    backward.insert(backward.begin(),
                    {.name = "aten::_to_copy", .read = token, .written_f32 = token});
  }
  build.unfused({forward, backward, 1}, OperatorKind::kElementwise, copies);
}

void copy_rows_fused(WorkloadBuilder& build, int64_t copies, int64_t hidden) {
  build.elementwise("shardlens::gather_rows", "shardlens::gather_rows_backward",
                    {.read = copies,
                     .written = copies,
                     .backward_read = copies,
                     .backward_written = hidden,
                     .backward_flops = copies});
}

void weighted_sum_fused(WorkloadBuilder& build, int64_t copies, int64_t hidden) {
  build.elementwise("shardlens::weighted_sum", "shardlens::weighted_sum_backward",
                    {.read = copies,
                     .written = hidden,
                     .saved = copies,
                     .flops = 2 * copies,
                     .backward_read = copies + hidden,
                     .backward_written = copies,
                     .backward_flops = 2 * copies});
}

void expert_product(WorkloadBuilder& build,
                    const ModelConfig::Experts& experts,
                    std::string_view weight,
                    int64_t in,
                    int64_t out,
                    bool bias,
                    std::span<const int64_t> rows) {
  build.grouped_linear({.experts = experts.count,
                        .per_token = experts.per_token,
                        .in = in,
                        .out = out,
                        .weight = weight,
                        .bias = bias,
                        .rows = rows});
}

// The gradients of the gate and of the weights each read the gate's input and the result's
// gradient.
void weighted_products(WorkloadBuilder& build,
                       const ModelConfig::Experts& experts,
                       int64_t hidden,
                       bool bias,
                       std::span<const int64_t> rows) {
  const int64_t inner = experts.intermediate_size;
  expert_product(build, experts, "gate_up_proj", hidden, 2 * inner, bias, rows);
  build.elementwise("deep_ep::weighted_swiglu", "deep_ep::weighted_swiglu_backward",
                    {.read = 2 * inner,
                     .written = inner,
                     .saved = 2 * inner,
                     .flops = 10 * inner,
                     .backward_read = 6 * inner,
                     .backward_written = 2 * inner,
                     .backward_flops = 24 * inner});
  expert_product(build, experts, "down_proj", inner, hidden, bias, rows);
}

}  // namespace shardlens::plan
